#include "motley/engine/device/test_faults.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "motley/base/error.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/device_errors.hpp"

namespace motley {
namespace {

TEST(TestFaults, AreReadOrRefused) {
  EXPECT_EQ(read_test_fault("illegal_access@7"), (TestFault{.step = 7}));
  EXPECT_EQ(read_test_fault("illegal_access@30,box/1"), (TestFault{30, "box/1"}));
  for (const char* wrong : {"", "illegal_access", "illegal_access@", "illegal_access@0", "illegal_access@-1",
                            "illegal_access@7,", "illegal_access@7x", "illegal_access@99999999999999999999"})
    EXPECT_THROW(read_test_fault(wrong), Error) << wrong;
}

TEST(TestFaults, AreForTestsAlone) {
  apart_device();  // names the library
  ::setenv("MOTLEY_FAULT", "illegal_access@7", 1);
  EXPECT_EQ(asked_test_fault(), (TestFault{.step = 7}));
  ::unsetenv("MOTLEY_FAULT");
  EXPECT_EQ(asked_test_fault(), std::nullopt);
}

// In a process of its own: the device is of no use any more.
TEST(TestFaults, BreakTheContextOfADeviceForGood) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ComputeDevice& device = apart_device();
        const at::Tensor values = device.empty({4}, at::kFloat).fill_(1);
        access_illegally(device);
        bool all_fail = true;
        for (int i = 0; i < 3; ++i) {
          try {
            device.wait_for_thread();
            all_fail = false;
          } catch (const c10::Error& error) {
            all_fail = all_fail && fault_of(error, health_of(device)) == DeviceFault::context;
          }
        }
        std::_Exit(all_fail && !device.lives() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace motley
