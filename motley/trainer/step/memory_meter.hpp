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

// What a pass frees the next one takes again. Memory that went back to the kernel would come as pages to fault in, one
// by one, and to fill with zeros. Of the whole process.
void keep_freed_memory();

}  // namespace motley
