// A file that holds what a process moves out of its memory: without a name, and read and written past the page cache.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "motley/base/rounding.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

// Offsets, sizes and addresses of what is read or written are multiples of this.
constexpr std::int64_t spill_alignment = 4096;
constexpr std::int64_t spill_aligned(std::int64_t bytes) { return round_up(bytes, spill_alignment); }

// Where such files are made: MOTLEY_SPILL_DIR, else TMPDIR, else /var/tmp, which is on a disk where /tmp may be memory.
std::filesystem::path spill_folder();

// Aligned memory of the process, zero at first.
class SpillBuffer {
 public:
  // Throws an environment error where the machine does not give so much. `what`: for whom, as in "streamed weights".
  SpillBuffer(std::string_view what, std::int64_t bytes);
  ~SpillBuffer() { ::munmap(begin_, bytes_); }
  SpillBuffer(const SpillBuffer&) = delete;
  SpillBuffer& operator=(const SpillBuffer&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(begin_), bytes_}; }

 private:
  std::size_t bytes_;
  void* begin_;
};

// Reads and writes may come from several threads at once. What the disk refuses is an environment error with the folder
// and the figures.
class SpillFile {
 public:
  // Reserves its bytes at once. Mode 0600 and unlinked: nothing stays behind, however the process ends.
  SpillFile(std::string what, std::int64_t bytes, std::filesystem::path folder = spill_folder());
  void write(std::int64_t offset, std::span<const std::byte> from) const;
  void read(std::int64_t offset, std::span<std::byte> to) const;

 private:
  std::string what_;
  std::filesystem::path folder_;
  FileDescriptor file_;
};

}  // namespace motley
