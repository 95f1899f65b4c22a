// Writes files in the safetensors format in slices, by one process or by several at once: header and length come
// first, from the list of tensors alone, then everybody writes the bytes that it has to their places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace motley {

struct SafetensorsEntry {
  std::string name;
  std::string type;  // as the format spells it: "F32", "BF16", ...
  std::vector<std::int64_t> shape;
};

// Where everything lies in a file of such tensors: equal for equal lists, so processes need not tell each other.
struct SafetensorsLayout {
  std::string header;                  // what the file begins with: the length of the JSON, and the JSON
  std::vector<std::uint64_t> offsets;  // in the file, of each tensor, in the order of the list
  std::vector<std::uint64_t> bytes;    // of each tensor
  std::uint64_t file_bytes = 0;
};

// Without gaps between tensors, which other readers refuse; those of large elements first, so that all are aligned to
// their elements. Names must differ and types be known.
SafetensorsLayout safetensors_layout(const std::vector<SafetensorsEntry>& entries);

class SafetensorsWriter {
 public:
  // Makes the file: its header, and room for all bytes, zeroes so far. Replaces a file of this name. Throws an
  // environment error, as where the disk is too small, and leaves no file then.
  static void create(const std::filesystem::path& path, const SafetensorsLayout& layout);

  // Opens a file that was made so.
  SafetensorsWriter(std::filesystem::path path, SafetensorsLayout layout);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes a tensor's bytes from `first` on; `tensor` is a place in the list. Any thread may call it.
  void write(std::size_t tensor, std::uint64_t first, std::span<const std::byte> bytes) const;
  // Returns when the disk holds what was written.
  void sync() const;

 private:
  std::filesystem::path path_;
  SafetensorsLayout layout_;
  int descriptor_ = -1;
};

}  // namespace motley
