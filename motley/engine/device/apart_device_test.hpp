// For tests: a device with memory of its own, which faults where the host touches it, and whose streams run late
// (tests/vendor/apart).
#pragma once

#include <cstdlib>

#include "motley/engine/devices.hpp"

namespace motley {

// Work of the calling thread goes to a stream of its own from now on.
inline const ComputeDevice& apart_device() {
  static const int named = ::setenv("MOTLEY_TEST_DEVICES", MOTLEY_APART_DEVICES, /*overwrite=*/0);
  (void)named;
  return open_device("apart:0");
}

}  // namespace motley
