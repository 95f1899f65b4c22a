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
  WeightMatrix router;    // [experts, hidden]; undefined where there are none
  ExpertWeights experts;  // in place of gate, up and down
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

// Of a map by role; undefined where this architecture has none.
WeightMatrix matrix_of(const std::map<std::string, WeightMatrix>& tensors, const std::string& role);

// Tensors by role; of vectors the values alone count. A role without a tensor is undefined in the block.
BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors);

}  // namespace motley
