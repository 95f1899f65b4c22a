// The weights of a transformer block, and of what stands around the blocks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "motley/engine/ops/ops.hpp"

namespace motley {

struct BlockWeights {
  NormWeights attention_norm, q_norm, k_norm, ffn_norm;
  LinearWeights q, k, v, o, gate, up, down;
  LinearWeights router;       // [experts, hidden]; undefined where there are none
  at::Tensor selection_bias;  // [experts], fp32; may be undefined
  ExpertWeights experts;      // in place of gate, up and down
  LinearWeights shared_gate, shared_up, shared_down;
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

// Tensors by role; of vectors the values alone count. A role without a tensor is undefined.
BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors);
EndWeights ends_of(const std::map<std::string, WeightMatrix>& tensors);

}  // namespace motley
