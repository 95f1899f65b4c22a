// Measures how fast bytes cross between devices and their host.
#pragma once

#include <string>
#include <vector>

#include "motley/workers/copy_list.hpp"

namespace motley {

// Of devices by their names (engine/devices.hpp), one after the other, and of all ordered pairs of them: some 1.5 s
// each. Pinned copies of 16 KiB, whose time is the latency, and of 64 MiB. Throws an input error for a device without
// memory of its own, and an environment error where one cannot be opened.
CopyList probe_copies(const std::vector<std::string>& devices);

}  // namespace motley
