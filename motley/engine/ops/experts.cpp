// Routing and mixing of experts with ATen and the products that an Ops has: for any device, and to be differentiated.
#include <ATen/core/grad_mode.h>

#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

Tensor rows_of(const Tensor& buffer, std::int64_t rows) {
  return buffer.defined() ? buffer.narrow(0, 0, rows) : Tensor();
}

}  // namespace

void Ops::score(RouterScore kind, Tensor& logits) const {
  if (kind == RouterScore::softmax_of_chosen) return;
  const Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  logits = kind == RouterScore::softmax ? at::softmax(wide, -1) : at::sigmoid(wide);
}

void Ops::route(Tensor& ids, Tensor& shares, const Tensor& scores, const Tensor& selection_bias,
                const Experts& experts) const {
  const RouterRule& rule = experts.router;
  const Tensor wide = scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
  const Tensor compared = selection_bias.defined() ? wide.detach() + selection_bias.detach() : wide.detach();
  const Tensor order =
      std::get<1>(compared.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(1, 0, experts.active);
  const Tensor chosen = std::get<0>(order.sort(-1));
  Tensor weights = wide.gather(1, chosen);
  if (rule.score == RouterScore::softmax_of_chosen) weights = at::softmax(weights, -1);
  if (rule.normalise) weights = weights / (weights.sum(-1, true) + rule.epsilon);
  if (rule.factor != 1) weights = weights * rule.factor;
  if (ids.defined()) {
    ids.copy_(chosen);
    shares.copy_(weights);
  } else {
    ids = chosen;
    shares = weights;
  }
}

// Experts that no token takes have no rows; where gradients are wanted, theirs are zeros.
void Ops::mix_experts(Activation kind, Tensor& out, Tensor& gates, Tensor& others, const Tensor& input,
                      const Tensor& ids, const Tensor& shares, const ExpertWeights& experts) const {
  const Tensor on_host = ids.to(at::kCPU).contiguous();
  const std::int64_t tokens = ids.size(0), active = ids.size(1);
  std::vector<std::vector<std::int64_t>> places(experts.down.size());  // in `ids`, of every expert
  for (std::int64_t i = 0; i < tokens * active; ++i)
    if (const std::int64_t expert = on_host.const_data_ptr<std::int64_t>()[i] - experts.first;
        expert >= 0 && expert < std::ssize(places))
      places[static_cast<std::size_t>(expert)].push_back(i);

  Tensor sum = at::zeros(input.sizes(), shares.options());
  for (std::size_t expert = 0; expert < places.size(); ++expert) {
    if (places[expert].empty() && !at::GradMode::is_enabled()) continue;
    const Tensor place = at::tensor(places[expert], at::kLong).to(input.device());
    const Tensor token = place.div(active, "floor");
    const Tensor own = input.index_select(0, token);
    Tensor gate = rows_of(gates, own.size(0)), other = rows_of(others, own.size(0)), product;
    if (out.defined()) product = at::empty(own.sizes(), sum.options());
    gated(kind, gate, other, own, experts.gate[expert], experts.up[expert]);
    linear(product, gate, experts.down[expert].weight, experts.down[expert].bias);
    // index_add_() would keep what it adds for the backward pass.
    sum.scatter_add_(0, token.unsqueeze(1).expand_as(product),
                     product * shares.flatten().index_select(0, place).unsqueeze(1));
  }
  if (out.defined())
    out.copy_(sum);
  else
    out = sum.to(input.scalar_type());
}

}  // namespace motley
