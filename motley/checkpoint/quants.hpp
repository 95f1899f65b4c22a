// Values to GGUF's quantised types and back.
//
// Dequantised values equal those of llama.cpp's `gguf` package bit for bit. So do the blocks of q8_0, q4_0, q4_1, q5_0,
// q5_1 and mxfp4 that are quantised here; for the others there is no reference: a search minimises the squared error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "motley/base/dtype.hpp"
#include "motley/checkpoint/quant_blocks.hpp"

namespace motley {

// `values` of fp32, fp16, bf16 or a quantised type, from the start of a block on.
void dequantise_row(DType type, const std::byte* row, std::int64_t values, float* out);
// Whole blocks. Values must be finite.
void quantise_row(DType type, const float* values, std::int64_t count, std::byte* row);

}  // namespace motley
