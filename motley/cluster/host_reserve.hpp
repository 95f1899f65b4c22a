// What planners leave of a host's memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace motley {

constexpr std::int64_t most_host_reserve_bytes = std::int64_t{8} << 30;

// For programs other than the workers, and for the kernel's cache of what is read from disk: a tenth, 8 GiB at most.
constexpr std::int64_t host_reserve_bytes(std::int64_t host_bytes) {
  return std::min(host_bytes / 10, most_host_reserve_bytes);
}

}  // namespace motley
