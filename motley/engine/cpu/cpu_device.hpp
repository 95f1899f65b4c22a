// The host's processors as a device.
#pragma once

#include "motley/engine/device/compute_device.hpp"

namespace motley {

const ComputeDevice& cpu_device();

}  // namespace motley
