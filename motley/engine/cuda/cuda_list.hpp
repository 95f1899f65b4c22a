// What CUDA lists on this machine.
#pragma once

#include <vector>

#include "motley/workers/gpu_list.hpp"

namespace motley {

// By PCI bus. Opens a context on each, so that the process is to end soon. Throws an environment error where CUDA's
// libraries, the driver or a device are missing, or a call fails.
std::vector<ListedGpu> list_cuda_devices();

}  // namespace motley
