// The search for the scales of GGUF's K types: the part of quants.hpp that has no reference.
#pragma once

#include <cstdint>

#include "motley/checkpoint/quant_blocks.hpp"

namespace motley {

// 256 values as numbers from 0 to `most`, whose bits above the fourth go to `high`.
void quantise_groups(const float* values, int most, std::uint16_t& scale, std::uint16_t& offset, std::uint8_t* scales,
                     std::uint8_t* low, std::uint8_t* high);
void quantise_six_bits(const float* values, BlockQ6K& block);

}  // namespace motley
