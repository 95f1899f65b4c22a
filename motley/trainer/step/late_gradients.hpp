// Products whose backward pass leaves the gradient of the weight for later: the input's is what the stage before waits
// for, as in ZB-H1 (arXiv 2401.10241), where the gradients of weights fill the pauses of a pipeline.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "motley/engine/ops/ops.hpp"

namespace motley {

class LateGradients {
 public:
  struct Product {
    at::Tensor weight, input, gradient;  // of the output
  };

  explicit LateGradients(const ComputeDevice& device);
  ~LateGradients();
  LateGradients(const LateGradients&) = delete;
  LateGradients& operator=(const LateGradients&) = delete;

  // A block's operations (TrainOps) with such products.
  const Ops& ops() const { return *ops_; }
  // Of the backward passes since it was last called.
  std::vector<Product> take();

 private:
  class LateOps;
  struct LateProduct;  // autograd's function

  std::vector<Product> products_;
  std::unique_ptr<const Ops> ops_;
};

// To the gradients of the weights, as autograd would have done. Lets go of each product.
void add_gradients(std::vector<LateGradients::Product> products);

}  // namespace motley
