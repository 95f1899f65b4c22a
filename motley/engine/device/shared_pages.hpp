// Pages of the host that several processes of a machine have in their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

class SharedPages {
 public:
  // What another process opens them by.
  struct Place {
    std::int64_t process = 0;
    std::int64_t file = -1;
    std::uint64_t mark = 0;  // in their first bytes: processes of another namespace have the same numbers
  };

  // Zeros but for the mark; nothing where the machine does not give so much.
  static std::optional<SharedPages> make(std::int64_t bytes);
  // Nothing where this process does not reach them, or they are others than those of `place`, of as many bytes.
  static std::optional<SharedPages> open(const Place& place, std::int64_t bytes);
  SharedPages(SharedPages&& other) noexcept
      : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, {})), mark_(other.mark_) {}
  SharedPages& operator=(SharedPages&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~SharedPages();

  std::span<std::byte> bytes() const { return memory_; }
  // Of pages that this process made, for as long as it has them.
  Place place() const;

 private:
  SharedPages(FileDescriptor file, std::span<std::byte> memory, std::uint64_t mark)
      : file_(std::move(file)), memory_(memory), mark_(mark) {}
  static std::span<std::byte> map(const FileDescriptor& file, std::int64_t bytes);

  FileDescriptor file_;
  std::span<std::byte> memory_;
  std::uint64_t mark_;
};

}  // namespace motley
