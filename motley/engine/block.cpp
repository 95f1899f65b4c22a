#include "motley/engine/block.hpp"

#include <cmath>

namespace motley {
namespace {

using at::Tensor;

// What attention or FFN reads: the hidden states, through the norm where that comes first.
Tensor input_of(const BlockCall& pass, const NormWeights& norm, Tensor& normed, const Tensor& hidden) {
  const Architecture& arch = pass.arch;
  if (arch.norm_first) pass.ops.norm(arch.norm, normed, hidden, norm, arch.norm_epsilon);
  Tensor input = arch.norm_first ? normed : hidden;
  pass.ranks.fan_out(input);
  return input;
}

// hidden += the ranks' sum of `projected`, and the projection's bias.
void add_sum(const BlockCall& pass, const NormWeights& norm, Tensor& projected, const Tensor& bias, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  pass.ranks.sum(projected);
  pass.ops.add(hidden, projected, bias);
  if (!arch.norm_first) pass.ops.norm(arch.norm, hidden, hidden, norm, arch.norm_epsilon);
}

// Attention over this rank's heads.
void attention(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers& buffers, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  const Ops& ops = pass.ops;
  const Tensor input = input_of(pass, block.attention_norm, buffers.normed, hidden);
  const auto heads_of = [&](Tensor& out, const LinearWeights& linear) {
    ops.linear(out, input, linear.weight, linear.bias);
    return out.view({out.size(0), -1, arch.head_dim});
  };
  Tensor query = heads_of(buffers.query, block.q), key = heads_of(buffers.key, block.k);
  const Tensor value = heads_of(buffers.value, block.v);
  if (arch.qk_norm) {
    ops.norm(Norm::rms, query, query, block.q_norm, arch.norm_epsilon);
    ops.norm(Norm::rms, key, key, block.k_norm, arch.norm_epsilon);
  }
  if (arch.position == PositionKind::rotary) {
    ops.rotate(query, pass.positions, pass.frequencies);
    ops.rotate(key, pass.positions, pass.frequencies);
  }
  const bool sliding = arch.sliding_layers.empty() || arch.sliding_layers.at(static_cast<std::size_t>(layer));
  ops.attend(
      buffers.attention, query, key, value, cache, pass.sequences,
      {.window = sliding ? arch.sliding_window : 0, .scale = 1.0 / std::sqrt(static_cast<double>(arch.head_dim))});
  ops.linear(buffers.projected, buffers.attention.flatten(1), block.o.weight, {});
  add_sum(pass, block.attention_norm, buffers.projected, block.o.bias, hidden);
}

// The FFN over this rank's columns.
void feed_forward(const BlockCall& pass, const BlockWeights& block, BlockBuffers& buffers, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  const Ops& ops = pass.ops;
  const Tensor input = input_of(pass, block.ffn_norm, buffers.normed, hidden);
  ops.linear(buffers.up, input, block.up.weight, block.up.bias);
  if (arch.gated) {
    ops.linear(buffers.gate, input, block.gate.weight, block.gate.bias);
    ops.activate(arch.activation, buffers.gate, buffers.up);
  } else {
    ops.activate(arch.activation, buffers.up, {});
  }
  ops.linear(buffers.projected, arch.gated ? buffers.gate : buffers.up, block.down.weight, {});
  add_sum(pass, block.ffn_norm, buffers.projected, block.down.bias, hidden);
}

}  // namespace

void run_block(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers buffers, Tensor& hidden) {
  attention(pass, block, layer, cache, buffers, hidden);
  feed_forward(pass, block, buffers, hidden);
}

}  // namespace motley
