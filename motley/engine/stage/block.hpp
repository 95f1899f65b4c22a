// One transformer block, for serving and for training alike: the operations that it is given decide whether results are
// written into buffers or are tensors that autograd follows.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "motley/engine/device/collectives.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/weights/block_weights.hpp"

namespace motley {

// What a step brings to all its blocks.
struct BlockCall {
  const Architecture& arch;
  const Ops& ops;
  BlockRanks& ranks;
  const std::vector<RotaryFrequencies>& frequencies;  // of each of the model's rotary rules
  const at::Tensor& positions;                        // [T]
  const std::vector<SequenceRows>& sequences;         // as the block's layer finds them
  std::size_t table = 0;                              // which of the step's this is
};

// Where results are written, [T, ...] each; undefined for operations that make tensors of their own.
struct BlockBuffers {
  at::Tensor normed, query, key, value, attention, projected, up, gate;  // query, key, value, attention: by heads
  at::Tensor routed, chosen, shares, shared_gate, shared_up;             // where there are experts
  at::Tensor squares;                                                    // of queries and keys, where norms are whole
};

// hidden [T, hidden] through block `layer` of the model.
void run_block(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers buffers, at::Tensor& hidden);

}  // namespace motley
