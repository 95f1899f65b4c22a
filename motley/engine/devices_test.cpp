#include "motley/engine/devices.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

TEST(Devices, AreKnownByTheirNames) {
  EXPECT_TRUE(open_device("cpu").place().is_cpu());
  for (const char* name : {"gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:4000", ""}) {
    try {
      open_device(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input) << name;
    }
  }
}

// Where there is no driver the message says so; where there is one, the device opens.
TEST(Devices, CudaOpensOrSaysWhatIsMissing) {
  try {
    EXPECT_TRUE(open_device("cuda:0").place().is_cuda());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_FALSE(error.hint().empty());
  }
}

}  // namespace
}  // namespace motley
