// The devices that there are, by their names.
#pragma once

#include <string>

#include "motley/engine/device/compute_device.hpp"

namespace motley {

// "cpu", or "cuda:N": then this thread's work on the device goes to a stream of its own from now on. So it is with
// "apart:N", which there is where MOTLEY_TEST_DEVICES names a library that brings such a device to LibTorch. Throws an
// input error for another name, and an environment error where the libraries, the driver or the device are missing.
const ComputeDevice& open_device(const std::string& name);

}  // namespace motley
