// What training adds to the memory of one rank: parameters with their states, and activations kept for the backward
// pass.
#pragma once

#include <cstdint>
#include <string>

#include "motley/model/model.hpp"

namespace motley {

// Which layer of the model cannot be trained, and why; empty: all can.
std::string untrainable(const Architecture& arch);
inline constexpr const char* untrainable_hint = "train a model of another family; docs/limits.md says which";

// Parameters that a rank holds of a stage; a tied table counts once.
std::int64_t rank_parameters(const Architecture& arch, const ModelPart& part, const Shard& shard);

// Elements that the backward pass of one block reads per token, on one rank: its input, both normed inputs, the sum
// after attention (hidden size each), query, key, value and the attention's output (the rank's heads), up, gate where
// gated, and their product (the rank's FFN columns, of all experts that a token takes and of the shared one). Where
// there are experts, the normed input and the output once more for each that a token takes, the router's logits, and
// for each that was chosen its share and three 64-bit indices. Where attention and FFN have norms of what they make,
// that once more for each. Scores are computed again, as fused attention does. A block of which only the input is kept
// (recomputation) has `hidden` elements instead.
std::int64_t stored_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard);

// Elements that the backward pass of one block works with per token, on one rank, in addition to what is stored. The
// gradient of the FFN's product, and with it those of up and gate (3 of the rank's FFN columns; without a gate 2); and
// three times the hidden size: the gradient that came, the one that goes on past the FFN, and a sum. Experts have their
// turns one after another, each with all tokens at most, and three times the hidden size more: the gradients of its
// output and of its input, and these among those of all tokens.
std::int64_t backward_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard);

// Elements that the element-wise operations of one block read and write per token, on one rank. Each operation reads
// its inputs and writes its output once: two norms, or four (2 hidden sizes each), two residual sums and that of a
// shared expert (3 each), rotation of query and key where positions are rotary (2 of each), the activation (2 of the
// rank's FFN columns; gated, with the product: 3). Their gradients: a norm reads two and writes one (3), a residual sum
// adds a gradient to another (3), a rotation is one again (2), the activation reads two and writes one (3; gated: reads
// three and writes two, 5).
struct ElementTraffic {
  std::int64_t forward = 0, backward = 0;
};
ElementTraffic element_traffic_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard);

// Bytes per token of the loss: its fp32 logits are written and read in the forward pass; the backward pass reads them,
// writes their gradient and reads that in the head's products.
ElementTraffic loss_bytes_per_token(const Shard& shard);

// Bytes per token of the logits on the last stage: fp32, which become their gradient in place; with them 16-bit types
// have the products, before and after.
std::int64_t logit_bytes_per_token(const Shard& shard, DType type);

}  // namespace motley
