// Faults that tests ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "motley/engine/device/compute_device.hpp"

namespace motley {

// illegal_access@STEP, or illegal_access@STEP,DEVICE for one device of the plan alone.
struct TestFault {
  std::uint64_t step = 0;
  std::string device = {};
  bool operator==(const TestFault&) const = default;
};
TestFault read_test_fault(std::string_view text);  // throws an input error

// What MOTLEY_FAULT asks for; nothing where MOTLEY_TEST_DEVICES is not set, be it to nothing.
std::optional<TestFault> asked_test_fault();

// Has the device write where it has no memory, as a kernel with an error does: what it is asked for from then on fails,
// and its process ends. A processor's process ends at once.
void access_illegally(const ComputeDevice& device);

}  // namespace motley
