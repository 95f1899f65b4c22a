#include "motley/engine/stage/block.hpp"

namespace motley {

using at::Tensor;

void delta_net(const BlockCall& pass, const BlockWeights& block, const DeltaNet& delta, const LayerCache& cache,
               BlockBuffers& buffers, Tensor& hidden) {
  const Ops& ops = pass.ops;
  const DeltaWeights& weights = block.delta;
  Tensor input = input_of(pass, block.attention_norm, buffers.normed, hidden);
  pass.ranks.copy_to_ranks(input);
  ops.linears({{buffers.delta_q, weights.q},
               {buffers.delta_k, weights.k},
               {buffers.delta_v, weights.v},
               {buffers.delta_gate, weights.z},
               {buffers.alpha, weights.alpha},
               {buffers.beta, weights.beta}},
              input);
  std::int64_t channel = 0;
  const auto convolve = [&](Tensor& rows, const Tensor& weight) {
    const Tensor kept = cache.convolved.defined() ? cache.convolved.narrow(1, channel, weight.size(0)) : Tensor();
    ops.convolve(rows, weight, kept, pass.sequences);
    channel += weight.size(0);
  };
  convolve(buffers.delta_q, weights.convolve_q);
  convolve(buffers.delta_k, weights.convolve_k);
  convolve(buffers.delta_v, weights.convolve_v);
  ops.gated_delta(buffers.delta_output,
                  {.query = buffers.delta_q.unflatten(1, {-1, delta.key_dim}),
                   .key = buffers.delta_k.unflatten(1, {-1, delta.key_dim}),
                   .value = buffers.delta_v.unflatten(1, {-1, delta.value_dim}),
                   .alpha = buffers.alpha,
                   .beta = buffers.beta,
                   .decay = weights.decay,
                   .step = weights.step,
                   .tiled = delta.tiled},
                  cache.state, pass.sequences);
  ops.norm(Norm::rms, buffers.delta_output, buffers.delta_output, weights.norm, pass.arch.norm_epsilon);
  ops.activate(Activation::silu, buffers.delta_gate, buffers.delta_output.flatten(1));
  add_product(pass, block.attention_norm, block.attention_output_norm, buffers.projected, buffers.delta_gate,
              weights.out, hidden);
}

}  // namespace motley
