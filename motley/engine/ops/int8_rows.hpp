// Activations as int8, row by row (Int8Row in motley/model/crossing_types.hpp). A row's bytes depend on its own values
// alone.
//
// A row is [place, bf16] of the exceptions, by ascending place; an fp16 scale per block; a byte per value. An exception
// counts as 0 in its block. A block's scale is its largest magnitude / 127, rounded up, so that no value is off by more
// than half of it. Values that are not finite are the first exceptions; a block with more of them, or with values
// beyond the largest scale (8.3e6), arrives as NaN.
#pragma once

#include <cstddef>
#include <span>

namespace motley {

// `row`: Int8Row{values.size()}.bytes() bytes.
void encode_int8_row(std::span<const float> values, std::span<std::byte> row);

// Throws a peer error where the places of the exceptions do not ascend inside the row.
void decode_int8_row(std::span<const std::byte> row, std::span<float> values);

}  // namespace motley
