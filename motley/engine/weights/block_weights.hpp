// The weights of a transformer block, and of what stands around the blocks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "motley/engine/ops/ops.hpp"

namespace motley {

// In place of q, k, v and o.
struct DeltaWeights {
  LinearWeights q, k, v, z, beta, alpha, out;
  at::Tensor convolve_q, convolve_k, convolve_v;  // [channels, width]; all fp32 but the norm
  at::Tensor decay, step;                         // [value heads]
  NormWeights norm;                               // of each value head
};

struct BlockWeights {
  NormWeights attention_norm, q_norm, k_norm, attention_output_norm, ffn_norm, ffn_output_norm;
  at::Tensor sinks;  // [query heads]; undefined where there are none
  LinearWeights q, k, v, o, gate, up, down;
  LinearWeights router;       // [experts, hidden]; undefined where there are none
  at::Tensor selection_bias;  // [experts], fp32; may be undefined
  at::Tensor expert_factors;  // the same
  ExpertWeights experts;      // in place of gate, up and down
  LinearWeights shared_gate, shared_up, shared_down;
  LinearWeights shared_share;  // [1, hidden]; undefined where the shared expert's share is 1
  NormWeights router_norm, routed_norm, routed_output_norm, shared_output_norm;
  at::Tensor layer_factor;  // [1]; undefined where there is none
  DeltaWeights delta;
};

// What stands before the first block and behind the last.
struct EndWeights {
  WeightMatrix embedding;      // [rows of vocabulary, embedding dim]
  WeightMatrix position;       // [position rows, hidden]
  WeightMatrix projection_in;  // [hidden, embedding dim]
  NormWeights final_norm;
  WeightMatrix projection_out;  // [embedding dim, hidden]
  WeightMatrix head;            // [rows of vocabulary, embedding dim]; the embedding itself where they are tied
  std::int64_t bytes = 0;       // allocated
};

// Tensors by role; of vectors the values alone count. A role without a tensor is undefined. So are the biases of what
// experts make on ranks other than the first: the sum over the ranks has each once, times the expert's share. Where
// ranks hold whole experts, those of this one begin with `first_expert`, and it has their biases.
BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors, int rank, std::int64_t first_expert = 0);
EndWeights ends_of(const std::map<std::string, WeightMatrix>& tensors);

}  // namespace motley
