// How much memory this machine could still give.
#pragma once

#include <cstdint>

namespace motley {

// By the kernel's estimate; never more than a control group grants.
std::int64_t free_memory_bytes();

}  // namespace motley
