// Writes parts of the state into the files of a checkpoint, which have their whole length (checkpoint_folder.hpp): on a
// worker's own machine, or where the driver has got them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/checkpoint/safetensors_writer.hpp"
#include "motley/trainer/layout/state_files.hpp"

namespace motley {

// `bytes` of a slice, row by row, in blocks of rows: of at most `most_bytes` each, but for a row that is larger.
void for_each_block(const Slice& slice, std::span<const std::byte> bytes, std::size_t most_bytes,
                    const std::function<void(const Slice& block, std::span<const std::byte> bytes)>& visit);

class StateWriter {
 public:
  // Throws an environment error where the files cannot be opened.
  StateWriter(const std::filesystem::path& folder, StateFiles files);

  // Bytes of a slice of the tensor of this state_name(), row by row. Throws a peer error where there is no such tensor
  // or slice, or the bytes are not as many as the slice has.
  void write(const std::string& name, const Slice& slice, std::span<const std::byte> bytes) const;
  // Returns when the disk has them.
  void sync() const;

 private:
  struct File {
    SafetensorsLayout layout;
    std::unique_ptr<SafetensorsWriter> writer;
  };
  StateFiles files_;
  std::vector<File> open_;
};

}  // namespace motley
