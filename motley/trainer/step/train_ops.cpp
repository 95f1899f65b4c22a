#include "motley/trainer/step/train_ops.hpp"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace motley {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps the input and a factor per row; what is between is computed again. `more` is added to the weights.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, double epsilon,
                        double more) {
    const Tensor x = input.to(at::kFloat);
    const Tensor factor = x.square().mean(-1, true).add_(epsilon).rsqrt_();
    context->save_for_backward({input, weight, factor});
    context->saved_data["more"] = more;
    return (x * factor).mul_(weight.to(at::kFloat) + more).to(input.scalar_type());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor factor = saved[2], gradient = gradients[0].to(at::kFloat);
    const Tensor weight = saved[1].to(at::kFloat) + context->saved_data["more"].toDouble();
    const Tensor normed = saved[0].to(at::kFloat) * factor;
    const Tensor own = gradient * normed;
    const Tensor of_weight = own.flatten(0, -2).sum(0).to(saved[1].scalar_type());
    const Tensor weighted = gradient * weight;
    const Tensor along = (own * weight).mean(-1, true);
    const Tensor of_input = weighted.sub_(normed.mul(along)).mul_(factor).to(saved[0].scalar_type());
    return {of_input, of_weight, Tensor(), Tensor()};
  }
};

// activation(gate) x up, of which the two factors are kept. The activation is silu or gelu_tanh.
struct ActivatedTimes : torch::autograd::Function<ActivatedTimes> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up, bool silu) {
    context->save_for_backward({gate, up});
    context->saved_data["silu"] = silu;
    return activated(gate, silu).mul_(up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &gate = saved[0], &up = saved[1], &gradient = gradients[0];
    const bool silu = context->saved_data["silu"].toBool();
    const Tensor of_gate =
        silu ? at::silu_backward(gradient * up, gate) : at::gelu_backward(gradient * up, gate, "tanh");
    return {of_gate, activated(gate, silu).mul_(gradient), Tensor()};
  }
  static Tensor activated(const Tensor& gate, bool silu) { return silu ? at::silu(gate) : at::gelu(gate, "tanh"); }
};

}  // namespace

void TrainOps::linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const {
  out = at::linear(input, weight.values, bias);
}

void TrainOps::gated(Activation kind, Tensor& out, Tensor&, const Tensor& input, const LinearWeights& gate,
                     const LinearWeights& up) const {
  Tensor gates, factors;
  linear(gates, input, gate.weight, gate.bias);
  linear(factors, input, up.weight, up.bias);
  const bool silu = kind.kind == Activation::silu;
  if ((silu || kind.kind == Activation::gelu_tanh) && input.scalar_type() != at::kDouble) {
    out = ActivatedTimes::apply(gates, factors, silu);
    return;
  }
  activate(kind, gates, factors);
  out = gates;
}

void TrainOps::norm(Norm kind, Tensor& out, const Tensor& input, const NormWeights& weights, double epsilon) const {
  if (kind == Norm::layer)
    out = at::layer_norm(input, {input.size(-1)}, weights.weight, weights.bias, epsilon);
  else if (weights.bias.defined())
    engine_.norm(kind, out, input, weights, epsilon);
  else
    out = RmsNorm::apply(input, weights.weight, epsilon, kind == Norm::rms1p ? 1.0 : 0.0);
}

void TrainOps::rotate(Tensor& heads, const Tensor& positions, const RotaryFrequencies& frequencies) const {
  engine_.rotate(heads, positions, frequencies);
}

void TrainOps::activate(Activation kind, Tensor& values, const Tensor& factors) const {
  engine_.activate(kind, values, factors);
}

void TrainOps::add(Tensor& sum, const Tensor& terms, const Tensor& bias) const { engine_.add(sum, terms, bias); }

void TrainOps::scale(Tensor& values, double factor) const { engine_.scale(values, factor); }

void TrainOps::embedding(Tensor& out, const Tensor& tokens, const WeightMatrix& table, const Span& rows) const {
  engine_.embedding(out, tokens, table, rows);
}

void TrainOps::attend(Tensor& out, const Tensor& query, const Tensor& key, const Tensor& value, const LayerCache& cache,
                      const std::vector<SequenceRows>& sequences, const AttentionShape& shape) const {
  const std::int64_t length = sequences.front().count, count = std::ssize(sequences);
  if (shape.window > 0 && shape.window < length) return engine_.attend(out, query, key, value, cache, sequences, shape);
  const auto batch = [&](const Tensor& heads) {
    return heads.view({count, length, heads.size(1), -1}).transpose(1, 2);
  };
  const bool grouped = query.size(1) != key.size(1);
  const Tensor result =
      at::scaled_dot_product_attention(batch(query), batch(key), batch(value), {}, 0, true, shape.scale, grouped);
  out = result.transpose(1, 2).reshape(query.sizes());
}

}  // namespace motley
