#include "motley/trainer/step/late_gradients.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "motley/trainer/step/train_ops.hpp"

namespace motley {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LateGradients::LateProduct : torch::autograd::Function<LateProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight, LateGradients* late) {
    context->save_for_backward({input, weight});
    context->saved_data["late"] = reinterpret_cast<std::int64_t>(late);
    return at::linear(input, weight);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &gradient = gradients[0];
    auto* late = reinterpret_cast<LateGradients*>(context->saved_data["late"].toInt());
    late->products_.push_back({weight, input, gradient});
    return {at::mm(gradient, weight), Tensor(), Tensor()};
  }
};

class LateGradients::LateOps final : public TrainOps {
 public:
  LateOps(const ComputeDevice& device, LateGradients& late) : TrainOps(device.differentiable_ops()), late_(late) {}
  void linear(Tensor& out, const Tensor& input, const WeightMatrix& weight, const Tensor& bias) const override {
    out = LateProduct::apply(input, weight.values, &late_);
    if (bias.defined()) out.add_(bias);
  }

 private:
  LateGradients& late_;
};

LateGradients::LateGradients(const ComputeDevice& device) : ops_(std::make_unique<LateOps>(device, *this)) {}
LateGradients::~LateGradients() = default;

std::vector<LateGradients::Product> LateGradients::take() { return std::exchange(products_, {}); }

void add_gradients(std::vector<LateGradients::Product> products) {
  const at::NoGradGuard values_alone;
  for (LateGradients::Product& of : products) {
    const LateGradients::Product product = std::exchange(of, {});
    Tensor gradient = product.weight.grad();
    if (gradient.defined())
      gradient.addmm_(product.gradient.t(), product.input);
    else
      product.weight.mutable_grad() = at::mm(product.gradient.t(), product.input);
  }
}

}  // namespace motley
