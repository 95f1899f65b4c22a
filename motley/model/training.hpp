// What training adds to the memory of one rank: parameters with their states, and activations kept for the backward
// pass.
#pragma once

#include <cstdint>

#include "motley/model/model.hpp"

namespace motley {

// Parameters that a rank holds of a stage; a tied table counts once.
std::int64_t rank_parameters(const Architecture& arch, const StageShape& stage, const Shard& shard);

// Elements that the backward pass of one block reads per token, on one rank: its input, both normed inputs, the sum
// after attention (hidden size each), query, key, value and the attention's output (the rank's heads), up, gate where
// gated, and their product (the rank's FFN columns). Scores are computed again, as fused attention does. A block of
// which only the input is kept (recomputation) has `hidden` elements instead.
std::int64_t stored_elements_per_token(const Architecture& arch, const Shard& shard);

// Bytes per token of the logits on the last stage and of their gradient, both fp32.
std::int64_t logit_bytes_per_token(const Shard& shard);

}  // namespace motley
