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
  at::Tensor gated_query = {};  // where attention has an output gate: of each head the query, then its gate
  at::Tensor shared_share = {}, routed_output = {};
  // Of a delta net, by heads in a row: its query, key and value, a gate, what it makes, and two rates of each head.
  at::Tensor delta_q = {}, delta_k = {}, delta_v = {}, delta_gate = {}, delta_output = {}, alpha = {}, beta = {};
};

// What attention or FFN reads: the hidden states, through the norm where that comes first. All ranks have the same.
at::Tensor input_of(const BlockCall& pass, const NormWeights& norm, at::Tensor& normed, const at::Tensor& hidden);
// hidden += the ranks' sum of the product, and its bias.
void add_product(const BlockCall& pass, const NormWeights& norm, const NormWeights& output_norm, at::Tensor& projected,
                 const at::Tensor& input, const LinearWeights& linear, at::Tensor& hidden);
// In attention's place, over this rank's heads.
void delta_net(const BlockCall& pass, const BlockWeights& block, const DeltaNet& delta, const LayerCache& cache,
               BlockBuffers& buffers, at::Tensor& hidden);

// hidden [T, hidden] through block `layer` of the model.
void run_block(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers buffers, at::Tensor& hidden);

}  // namespace motley
