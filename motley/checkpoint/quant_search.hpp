// Values to the types whose scales are searched for, such that the squared error of a block is small: there is no
// reference that they must equal.
#pragma once

#include "motley/checkpoint/quant_blocks.hpp"

namespace motley {

void quantise(const float* values, BlockQ4K& block);
void quantise(const float* values, BlockQ5K& block);
void quantise(const float* values, BlockQ6K& block);
void quantise(const float* values, BlockIQ4NL& block);
void quantise(const float* values, BlockIQ4XS& block);

// The value that is largest in magnitude, the first where several are, with its sign; 0 of zeros.
float extreme_of(const float* values, int count);

}  // namespace motley
