#include "motley/engine/device/shared_pages.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

namespace motley {
namespace {

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;  // a file that shrinks kills who touches its pages

std::uint64_t random_mark() {
  std::random_device bits;
  return static_cast<std::uint64_t>(bits()) << 32 | bits();
}

}  // namespace

std::span<std::byte> SharedPages::map(const FileDescriptor& file, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? std::span<std::byte>() : std::span(static_cast<std::byte*>(memory), size);
}

std::optional<SharedPages> SharedPages::make(std::int64_t bytes) {
  FileDescriptor file(::memfd_create("motley-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), bytes) != 0 || ::fcntl(file.get(), F_ADD_SEALS, size_seals) != 0)
    return std::nullopt;
  const std::span<std::byte> memory = map(file, bytes);
  if (memory.empty()) return std::nullopt;
  const std::uint64_t mark = random_mark();
  std::memcpy(memory.data(), &mark, sizeof mark);
  return SharedPages(std::move(file), memory, mark);
}

std::optional<SharedPages> SharedPages::open(const Place& place, std::int64_t bytes) {
  if (place.process < 1 || place.file < 0) return std::nullopt;
  const std::string path = fmt::format("/proc/{}/fd/{}", place.process, place.file);
  struct stat status {};
  // Looked at before it is opened: it may be anything.
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != bytes) return std::nullopt;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return std::nullopt;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & size_seals) != size_seals) return std::nullopt;
  const std::span<std::byte> memory = map(file, bytes);
  if (memory.empty()) return std::nullopt;
  SharedPages pages({}, memory, place.mark);
  if (std::memcmp(memory.data(), &place.mark, sizeof place.mark) != 0) return std::nullopt;
  return pages;
}

SharedPages::~SharedPages() {
  if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

SharedPages::Place SharedPages::place() const { return {::getpid(), file_.get(), mark_}; }

}  // namespace motley
