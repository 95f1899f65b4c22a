// A meter in front of LibTorch's allocator for processors.
#pragma once

#include "motley/engine/device/memory_meter.hpp"

namespace motley {

// Counts for all threads, from the first call on.
MemoryMeter& cpu_meter();

}  // namespace motley
