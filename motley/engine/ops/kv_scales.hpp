// Keys and values in 8 bits.
#pragma once

#include <cstdint>

namespace motley {

// Elements of a head that share a scale.
constexpr std::int64_t kv_scale_values = 32;

}  // namespace motley
