// Activations on their way from one stage to the next: the types they may be sent in, and how many bytes they take.
#pragma once

#include <cstdint>

#include "motley/base/rounding.hpp"
#include "motley/model/model.hpp"

namespace motley {

// Rows of `int8`: blocks of 64 values with an fp16 scale each. The 8 values of the largest magnitude, which would make
// all others of their blocks 0, are sent apart: two bytes of place, two of bf16. 4,256 bytes for 4,096 values.
struct Int8Row {
  static constexpr std::int64_t block_values = 64;
  static constexpr std::int64_t most_exceptions = 8;
  static constexpr std::int64_t exception_bytes = 4;
  static constexpr std::int64_t scale_bytes = 2;
  static constexpr std::int64_t most_values = 1 << 16;  // places have 16 bits

  std::int64_t values = 0;
  std::int64_t exceptions() const { return values < most_exceptions ? values : most_exceptions; }
  std::int64_t blocks() const { return ceil_div(values, block_values); }
  std::int64_t bytes() const { return exceptions() * exception_bytes + blocks() * scale_bytes + values; }
};

// Bytes of a token's `hidden` values in a type that check_activation_type() accepts.
std::int64_t crossing_bytes(DType type, std::int64_t hidden);

// Throws an input error where the activations of such a model cannot be sent in this type: fp32, bf16 or int8.
void check_activation_type(const Architecture& arch, DType type);

}  // namespace motley
