// How much memory tensors take, and the most that they took: a meter in front of LibTorch's allocator for processors.
#pragma once

#include <cstdint>

namespace motley {

// Counts what is allocated from the first call on, for all threads.
void start_memory_meter();
std::int64_t metered_bytes();
// Since the last call of reset_peak(), or the start.
std::int64_t metered_peak_bytes();
void reset_metered_peak();

}  // namespace motley
