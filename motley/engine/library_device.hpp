// A device that a library brings to LibTorch, as its PrivateUse1: computed with by LibTorch's own operations. The tests
// bring one.
#pragma once

#include <string>

#include "motley/engine/device/compute_device.hpp"

namespace motley {

// Device `index` of the library at `path`, `name` in errors; this thread's work on it goes to a stream of its own from
// now on. The library is opened at the first call, and there is only one. Throws an environment error where it cannot
// be opened, brings no device or has fewer of them.
const ComputeDevice& open_library_device(const std::string& path, int index, const std::string& name);

}  // namespace motley
