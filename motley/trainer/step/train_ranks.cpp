#include "motley/trainer/step/train_ranks.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "motley/engine/device/collectives.hpp"

namespace motley {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

CollectiveElement element_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return CollectiveElement::fp32;
    case at::kDouble: return CollectiveElement::fp64;
    case at::kBFloat16: return CollectiveElement::bf16;
    default: MOTLEY_CHECK(false);
  }
}

// The gradient of a rank's own terms is that of their sum.
struct SumForwards : torch::autograd::Function<SumForwards> {
  static Tensor forward(AutogradContext*, const Tensor& terms, TrainRanks* ranks) {
    Tensor sum = terms.clone();
    ranks->sum_values(sum);
    return sum;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], Tensor()}; }
};

struct SumBackwards : torch::autograd::Function<SumBackwards> {
  static Tensor forward(AutogradContext* context, const Tensor& input, TrainRanks* ranks) {
    context->saved_data["ranks"] = reinterpret_cast<std::int64_t>(ranks);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Tensor sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    reinterpret_cast<TrainRanks*>(context->saved_data["ranks"].toInt())->sum_values(sum);
    return {sum, Tensor()};
  }
};

// Values of the first rank, with the gradient of one's own.
struct FromFirst : torch::autograd::Function<FromFirst> {
  static Tensor forward(AutogradContext*, const Tensor& values, TrainRanks* ranks) {
    Tensor same = ranks->is_first() ? values.clone() : at::zeros_like(values);
    ranks->sum_values(same);
    return same;
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) { return {gradients[0], Tensor()}; }
};

}  // namespace

void TrainRanks::sum(Tensor& terms) {
  if (group_ == nullptr) return;
  if (terms.requires_grad())
    terms = SumForwards::apply(terms, this);
  else
    sum_values(terms);
}

void TrainRanks::copy_to_ranks(Tensor& input) {
  if (group_ != nullptr && input.requires_grad()) input = SumBackwards::apply(input, this);
}

void TrainRanks::take_from_first(Tensor& values) {
  if (group_ != nullptr) values = FromFirst::apply(values, this);
}

void TrainRanks::sum_values(Tensor& terms) {
  if (group_ == nullptr || terms.numel() == 0) return;
  MOTLEY_CHECK(terms.is_contiguous());
  through_host(device_, terms, buffer_, [&](auto bytes) { group_->all_reduce(bytes, element_of(terms)); });
}

Tensor TrainRanks::gather(const Tensor& own) {
  Tensor all = at::empty({size(), own.size(0), own.size(1)}, own.options());
  const std::int64_t rank = group_ != nullptr ? group_->rank() : 0;
  all[rank].copy_(own);
  if (group_ == nullptr || own.numel() == 0) return all;
  std::vector<std::int64_t> bounds;
  const std::int64_t bytes = own.numel() * own.element_size();
  for (std::int64_t r = 0; r <= size(); ++r) bounds.push_back(r * bytes);
  through_host(device_, all, buffer_, [&](auto of_all) { group_->all_gather(of_all, bounds); });
  return all;
}

}  // namespace motley
