// The operations of a block in training: those of the engine that autograd follows, and in place of some of them such
// as keep for the backward pass what the plan's memory counts (stored_elements_per_token(), model/training.hpp) and no
// more.
#pragma once

#include <vector>

#include "motley/engine/ops/ops.hpp"

namespace motley {

class TrainOps : public Ops {
 public:
  // `engine`: ComputeDevice::differentiable_ops().
  explicit TrainOps(const Ops& engine) : engine_(engine) {}
  void linear(at::Tensor& out, const at::Tensor& input, const WeightMatrix& weight,
              const at::Tensor& bias) const override;
  // The gate's product is computed first.
  void gated(Activation kind, at::Tensor& out, at::Tensor& other, const at::Tensor& input, const LinearWeights& gate,
             const LinearWeights& up) const override;
  void norm(Norm kind, at::Tensor& out, const at::Tensor& input, const NormWeights& weights,
            double epsilon) const override;
  void rotate(at::Tensor& heads, const at::Tensor& positions, const RotaryFrequencies& frequencies) const override;
  void activate(Activation kind, at::Tensor& values, const at::Tensor& factors) const override;
  void add(at::Tensor& sum, const at::Tensor& terms, const at::Tensor& bias) const override;
  void scale(at::Tensor& values, double factor) const override;
  void embedding(at::Tensor& out, const at::Tensor& tokens, const WeightMatrix& table, const Span& rows) const override;
  // All sequences of a micro-batch are of one length.
  void attend(at::Tensor& out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
              const LayerCache& cache, const std::vector<SequenceRows>& sequences,
              const AttentionShape& shape) const override;

 private:
  const Ops& engine_;
};

}  // namespace motley
