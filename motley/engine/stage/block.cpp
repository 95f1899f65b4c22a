#include "motley/engine/stage/block.hpp"

#include <cmath>

namespace motley {

using at::Tensor;

Tensor input_of(const BlockCall& pass, const NormWeights& norm, Tensor& normed, const Tensor& hidden) {
  const Architecture& arch = pass.arch;
  if (arch.norm_first) pass.ops.norm(arch.norm, normed, hidden, norm, arch.norm_epsilon);
  return arch.norm_first ? normed : hidden;
}

namespace {

// hidden = its norm, where that comes last.
void norm_last(const BlockCall& pass, const NormWeights& norm, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  if (!arch.norm_first) pass.ops.norm(arch.norm, hidden, hidden, norm, arch.norm_epsilon);
}

// hidden += what attention or FFN made, through its norm.
void add_normed(const BlockCall& pass, const NormWeights& output_norm, Tensor& made, Tensor& hidden) {
  if (output_norm.weight.defined()) pass.ops.norm(pass.arch.norm, made, made, output_norm, pass.arch.norm_epsilon);
  pass.ops.add(hidden, made, {});
}

}  // namespace

void add_product(const BlockCall& pass, const NormWeights& norm, const NormWeights& output_norm, Tensor& projected,
                 const Tensor& input, const LinearWeights& linear, Tensor& hidden) {
  if (output_norm.weight.defined()) {
    MOTLEY_CHECK(!linear.bias.defined());
    pass.ops.linear(projected, input, linear.weight, {});
    if (pass.ranks.size() > 1) pass.ranks.sum(projected);
    add_normed(pass, output_norm, projected, hidden);
  } else if (pass.ranks.size() == 1) {
    pass.ops.add_linear(hidden, projected, input, linear);
  } else {
    pass.ops.linear(projected, input, linear.weight, {});
    pass.ranks.sum(projected);
    pass.ops.add(hidden, projected, linear.bias);
  }
  norm_last(pass, norm, hidden);
}

namespace {

const NormWeights no_norm;

// Copies into a buffer; without one, `out` becomes that tensor.
void put(const Tensor& values, Tensor& out) {
  if (out.defined())
    out.copy_(values);
  else
    out = values;
}

// Queries and keys through the norms of all heads of a token together, of which this rank has some. Ranks that have the
// same KV head divide its query heads, and count as much of its squares.
void norm_whole(const BlockCall& pass, const BlockWeights& block, const LayerKind& kind, BlockBuffers& buffers) {
  const Architecture& arch = pass.arch;
  if (pass.ranks.size() == 1) {
    pass.ops.norm(Norm::rms, buffers.query, buffers.query, block.q_norm, arch.norm_epsilon);
    pass.ops.norm(Norm::rms, buffers.key, buffers.key, block.k_norm, arch.norm_epsilon);
    return;
  }
  const Tensor query = buffers.query.to(at::kFloat), key = buffers.key.to(at::kFloat);
  const double counted =
      static_cast<double>(query.size(1) * kind.kv_heads) / static_cast<double>(key.size(1) * arch.heads);
  buffers.squares.select(1, 0).copy_(query.square().sum(1));
  buffers.squares.select(1, 1).copy_(key.square().sum(1).mul_(counted));
  pass.ranks.sum(buffers.squares);
  const auto scale = [&](Tensor& out, const Tensor& rows, std::int64_t which, std::int64_t heads,
                         const NormWeights& norm) {
    const Tensor mean = buffers.squares.select(1, which).unsqueeze(1) / static_cast<double>(heads * kind.head_dim);
    out.copy_(rows * at::rsqrt(mean + arch.norm_epsilon) * norm.weight.to(at::kFloat));
  };
  scale(buffers.query, query, 0, arch.heads, block.q_norm);
  scale(buffers.key, key, 1, kind.kv_heads, block.k_norm);
}

// Attention over this rank's heads.
void attention(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers& buffers, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  const LayerKind& kind = arch.kind(layer);
  const Ops& ops = pass.ops;
  Tensor input = input_of(pass, block.attention_norm, buffers.normed, hidden);
  pass.ranks.copy_to_ranks(input);
  Tensor& product = arch.output_gate ? buffers.gated_query : buffers.query;
  if (kind.keys_are_values) {
    ops.linears({{product, block.q}, {buffers.key, block.k}}, input);
    put(buffers.key, buffers.value);
  } else {
    ops.linears({{product, block.q}, {buffers.key, block.k}, {buffers.value, block.v}}, input);
  }
  const Tensor gated = arch.output_gate ? product.view({input.size(0), -1, 2, kind.head_dim}) : Tensor();
  if (gated.defined()) put(gated.select(2, 0).flatten(1), buffers.query);  // without the gates behind them
  if (arch.qk_norm == QkNorm::whole) norm_whole(pass, block, kind, buffers);
  const bool by_head = arch.qk_norm == QkNorm::head;
  const auto by_heads = [&](const Tensor& rows) { return rows.view({rows.size(0), -1, kind.head_dim}); };
  Tensor query = by_heads(buffers.query), key = by_heads(buffers.key), value = by_heads(buffers.value);
  if (arch.value_norm) ops.norm(Norm::rms, value, value, no_norm, arch.norm_epsilon);
  ops.rotate_heads(query, key,
                   {.norm = arch.norm,
                    .query_norm = by_head ? block.q_norm : no_norm,
                    .key_norm = by_head ? block.k_norm : no_norm,
                    .epsilon = arch.norm_epsilon,
                    .positions = pass.positions,
                    .frequencies = arch.position == PositionKind::rotary ? &pass.frequencies[kind.rotary] : nullptr});
  ops.attend(buffers.attention, query, key, value, cache, pass.sequences,
             {.window = kind.window,
              .scale = arch.score_scale > 0 ? arch.score_scale : 1 / std::sqrt(static_cast<double>(kind.head_dim)),
              .sinks = block.sinks,
              .table = pass.table});
  if (gated.defined()) ops.gate(buffers.attention, gated.select(2, 1));
  add_product(pass, block.attention_norm, block.attention_output_norm, buffers.projected, buffers.attention.flatten(1),
              block.o, hidden);
}

// The FFN over this rank's columns.
void feed_forward(const BlockCall& pass, const BlockWeights& block, BlockBuffers& buffers, Tensor& hidden) {
  const Architecture& arch = pass.arch;
  const Ops& ops = pass.ops;
  Tensor input = input_of(pass, block.ffn_norm, buffers.normed, hidden);
  pass.ranks.copy_to_ranks(input);
  if (arch.gated) {
    ops.gated(arch.activation, buffers.gate, buffers.up, input, block.gate, block.up);
  } else {
    ops.linear(buffers.up, input, block.up.weight, block.up.bias);
    ops.activate(arch.activation, buffers.up, {});
  }
  add_product(pass, block.ffn_norm, block.ffn_output_norm, buffers.projected, arch.gated ? buffers.gate : buffers.up,
              block.down, hidden);
}

// Which experts each row of the input takes. If two ranks chose unlike ones, parts of an expert would be missing.
void route(const BlockCall& pass, const BlockWeights& block, const Experts& experts, BlockBuffers& buffers,
           const Tensor& input) {
  const Ops& ops = pass.ops;
  ops.linear(buffers.routed, input, block.router.weight, block.router.bias);
  if (experts.own_norms) ops.scale(buffers.routed, 1 / std::sqrt(static_cast<double>(pass.arch.hidden)));
  ops.score(experts.router.score, buffers.routed);
  pass.ranks.take_from_first(buffers.routed);
  ops.route(buffers.chosen, buffers.shares, buffers.routed, block.selection_bias, experts);
  if (block.expert_factors.defined())
    buffers.shares =
        buffers.shares * block.expert_factors.index_select(0, buffers.chosen.flatten()).view_as(buffers.shares);
}

// The experts that a token takes and an FFN that all pass, over this rank's columns of each, each with norms of its
// own.
void feed_both(const BlockCall& pass, const BlockWeights& block, const Experts& experts, BlockBuffers& buffers,
               Tensor& hidden) {
  const Ops& ops = pass.ops;
  const auto normed = [&](const NormWeights& norm) {
    ops.norm(pass.arch.norm, buffers.normed, hidden, norm, pass.arch.norm_epsilon);
    return buffers.normed;
  };
  const auto sum_and_norm = [&](Tensor& out, const NormWeights& norm) {
    if (pass.ranks.size() > 1) pass.ranks.sum(buffers.projected);
    ops.norm(pass.arch.norm, out, buffers.projected, norm, pass.arch.norm_epsilon);
  };
  const Activation activation = pass.arch.activation;
  route(pass, block, experts, buffers, normed(block.router_norm));
  ops.mix_experts(activation, buffers.projected, buffers.gate, buffers.up, normed(block.routed_norm), buffers.chosen,
                  buffers.shares, block.experts);
  sum_and_norm(buffers.routed_output, block.routed_output_norm);
  ops.gated(activation, buffers.shared_gate, buffers.shared_up, normed(block.ffn_norm), block.gate, block.up);
  ops.linear(buffers.projected, buffers.shared_gate, block.down.weight, {});
  sum_and_norm(buffers.projected, block.shared_output_norm);
  ops.add(buffers.projected, buffers.routed_output, {});
  add_normed(pass, block.ffn_output_norm, buffers.projected, hidden);
}

// The experts that a token takes and the shared one, over this rank's columns of each.
void feed_experts(const BlockCall& pass, const BlockWeights& block, const Experts& experts, BlockBuffers& buffers,
                  Tensor& hidden) {
  const Ops& ops = pass.ops;
  Tensor input = input_of(pass, block.ffn_norm, buffers.normed, hidden);
  route(pass, block, experts, buffers, input);
  pass.ranks.copy_to_ranks(buffers.shares);
  pass.ranks.copy_to_ranks(input);
  const Activation activation = pass.arch.activation;
  ops.mix_experts(activation, buffers.projected, buffers.gate, buffers.up, input, buffers.chosen, buffers.shares,
                  block.experts);
  if (experts.shared_ffn > 0) {
    ops.gated(activation, buffers.shared_gate, buffers.shared_up, input, block.shared_gate, block.shared_up);
    if (experts.shared_gate) {
      ops.linear(buffers.shared_share, input, block.shared_share.weight, {});
      ops.gate(buffers.shared_gate, buffers.shared_share);
    }
    ops.add_linear(buffers.projected, buffers.normed, buffers.shared_gate, block.shared_down);
  }
  if (pass.ranks.size() > 1) pass.ranks.sum(buffers.projected);
  add_normed(pass, block.ffn_output_norm, buffers.projected, hidden);
  norm_last(pass, block.ffn_norm, hidden);
}

}  // namespace

void run_block(const BlockCall& pass, const BlockWeights& block, std::int64_t layer, const LayerCache& cache,
               BlockBuffers buffers, Tensor& hidden) {
  if (const DeltaNet& delta = pass.arch.kind(layer).delta)
    delta_net(pass, block, delta, cache, buffers, hidden);
  else
    attention(pass, block, layer, cache, buffers, hidden);
  if (const Experts& experts = pass.arch.kind(layer).experts; experts.own_norms)
    feed_both(pass, block, experts, buffers, hidden);
  else if (experts.count > 0)
    feed_experts(pass, block, experts, buffers, hidden);
  else
    feed_forward(pass, block, buffers, hidden);
  if (block.layer_factor.defined()) hidden.mul_(block.layer_factor);
}

}  // namespace motley
