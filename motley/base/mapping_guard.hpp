// Files mapped into memory, while others may change them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace motley {

// A mapped file that becomes shorter, or whose disk fails, ends the process at the next read beyond (SIGBUS). While a
// guard stands for a mapping, the process then names the file on stderr and exits with ErrorCode::environment.
class MappingGuard {
 public:
  MappingGuard(std::span<const std::byte> mapped, const std::filesystem::path& file);
  ~MappingGuard();
  MappingGuard(MappingGuard&& other) noexcept;
  MappingGuard& operator=(MappingGuard&&) = delete;

  struct Mapping;

 private:
  Mapping* mapping_ = nullptr;
};

}  // namespace motley
