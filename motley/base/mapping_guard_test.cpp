#include "motley/base/mapping_guard.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::size_t mapping_bytes = 1 << 16;

// A mapped file without a name.
struct Mapped {
  Mapped() {
    EXPECT_EQ(::ftruncate(::fileno(file), mapping_bytes), 0);
    bytes = static_cast<const std::byte*>(::mmap(nullptr, mapping_bytes, PROT_READ, MAP_PRIVATE, ::fileno(file), 0));
    guard.emplace(std::span(bytes, mapping_bytes), "models/weights.safetensors");
  }
  ~Mapped() {
    guard.reset();
    ::munmap(const_cast<std::byte*>(bytes), mapping_bytes);
    std::fclose(file);
  }
  std::byte read(std::size_t at) const { return *const_cast<const volatile std::byte*>(bytes + at); }

  std::FILE* file = std::tmpfile();
  const std::byte* bytes = nullptr;
  std::optional<MappingGuard> guard;
};

TEST(MappingGuard, AFileThatBecomesShorterEndsTheProcessWithItsName) {
  const Mapped other;
  Mapped mapped;
  EXPECT_EQ(mapped.read(mapping_bytes - 1), std::byte{0});
  EXPECT_EXIT(
      {
        (void)::ftruncate(::fileno(mapped.file), 5000);
        (void)mapped.read(mapping_bytes - 1);
      },
      testing::ExitedWithCode(static_cast<int>(ErrorCode::environment)),
      "error: models/weights.safetensors cannot be read any more");
}

#if !defined(__SANITIZE_ADDRESS__)  // which has a handler of its own
TEST(MappingGuard, OtherFaultsAreAsBefore) {
  Mapped mapped;
  EXPECT_EXIT(::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
  mapped.guard.reset();
  EXPECT_EXIT(
      {
        (void)::ftruncate(::fileno(mapped.file), 0);
        (void)mapped.read(0);
      },
      testing::KilledBySignal(SIGBUS), "");
}
#endif

}  // namespace
}  // namespace motley
