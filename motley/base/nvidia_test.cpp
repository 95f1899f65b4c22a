#include "motley/base/nvidia.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

TEST(NvidiaGpus, AreListedWithTheirFreeMemory) {
  const std::vector<NvidiaGpu> gpus = nvidia_gpus(MOTLEY_NVML_STUB);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "Stub 0");
  EXPECT_EQ(gpus[1].name, "Stub 1");
  EXPECT_EQ(gpus[1].memory_bytes, 24LL << 30);
  EXPECT_EQ(gpus[1].free_bytes, 20LL << 30);
  EXPECT_EQ(gpus[1].major * 10 + gpus[1].minor, 86);
}

TEST(NvidiaGpus, AMissingDriverIsSaid) {
  try {
    nvidia_gpus("libnvidia-ml-missing.so");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_THAT(error.what(), testing::HasSubstr("no NVIDIA driver"));
  }
}

}  // namespace
}  // namespace motley
