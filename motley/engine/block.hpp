// One transformer block, for serving and for training alike: the operations that it is given decide whether results are
// written into buffers or are tensors that autograd follows.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "motley/engine/ops.hpp"

namespace motley {

struct BlockWeights {
  NormWeights attention_norm, q_norm, k_norm, ffn_norm;
  LinearWeights q, k, v, o, gate, up, down;
};

// Where the ranks of a stage meet inside a block.
class BlockRanks {
 public:
  virtual ~BlockRanks() = default;
  virtual int size() const = 0;
  // terms = their sum over the ranks, the same bits on each.
  virtual void sum(at::Tensor& terms) = 0;
  // `input` is the same on all ranks, and each continues with its own shard. Where gradients are wanted, they are
  // summed over the ranks on their way back through here.
  virtual void fan_out(at::Tensor& input) { (void)input; }
};

// What a step brings to all its blocks.
struct BlockCall {
  const Architecture& arch;
  const Ops& ops;
  BlockRanks& ranks;
  const RotaryFrequencies& frequencies;
  const at::Tensor& positions;  // [T]
  const std::vector<SequenceRows>& sequences;
};

// Where results are written, [T, ...] each; undefined for operations that make tensors of their own.
struct BlockBuffers {
  at::Tensor normed, query, key, value, attention, projected, up, gate;  // query, key, value, attention: by heads
};

// hidden [T, hidden] through block `layer` of the model.
void run_block(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers buffers, at::Tensor& hidden);

}  // namespace motley
