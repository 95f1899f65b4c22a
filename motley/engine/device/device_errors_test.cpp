#include "motley/engine/device/device_errors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace motley {
namespace {

c10::Error device_error(const char* text) { return c10::Error(c10::SourceLocation{"", "", 0}, text); }

TEST(DeviceErrors, ABrokenContextIsNotALackOfMemory) {
  const auto lives = [] { return true; };
  const auto broken = [] { return false; };
  for (const char* text : {"CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling",
                           "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"}) {
    EXPECT_TRUE(is_of_memory(device_error(text), lives)) << text;
    EXPECT_FALSE(is_of_memory(device_error(text), broken)) << text;
  }
  bool asked = false;
  const auto asks = [&] { return asked = true; };
  EXPECT_FALSE(is_of_memory(device_error("CUDA error: an illegal memory access was encountered"), asks));
  EXPECT_FALSE(asked) << "nothing is asked of a device that said what it has";
}

// A GPU's memory as it comes back after a process has ended.
class FreedMemory {
 public:
  explicit FreedMemory(std::vector<std::int64_t> bytes) : bytes_(std::move(bytes)) {}
  std::int64_t next() { return bytes_[std::min(looks_++, bytes_.size() - 1)]; }
  std::size_t looks() const { return looks_; }

 private:
  std::vector<std::int64_t> bytes_;
  std::size_t looks_ = 0;
};

TEST(DeviceErrors, WaitsForMemoryThatComesBack) {
  const auto settled = [](FreedMemory& memory) {
    return settled_free_bytes(
        80, [&] { return memory.next(); }, std::chrono::milliseconds(0));
  };
  FreedMemory at_once({90}), slowly({10, 10, 10, 40, 70, 81, 95}), never({10, 30, 50});
  EXPECT_EQ(settled(at_once), 90);
  EXPECT_EQ(at_once.looks(), 1u);
  EXPECT_EQ(settled(slowly), 81);
  EXPECT_EQ(settled(never), 50);
  EXPECT_LT(never.looks(), 30u) << "others have the rest";
  std::int64_t changes = 0;
  EXPECT_EQ(settled_free_bytes(
                80, [&] { return ++changes % 2; }, std::chrono::milliseconds(0)),
            1);
  EXPECT_LE(changes, 101) << "it ends, whatever is said";
}

}  // namespace
}  // namespace motley
