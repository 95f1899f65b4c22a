// Keys and values in 8 bits.
#pragma once

#include <cstdint>

namespace motley {

// So many elements of a head share a scale.
constexpr std::int64_t kv_scale_values = 32;

}  // namespace motley
