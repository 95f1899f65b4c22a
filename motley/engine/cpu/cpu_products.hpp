// Products with a model's matrices on a CPU: the kernels of cpu_kernels.hpp over the threads.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/engine/ops/ops.hpp"

namespace motley {

// Throws an input error where the environment's MOTLEY_ACTIVATIONS asks for what there is not.
void check_activations();

// Lays the matrix in panels where its products read them so.
void lay_panels(WeightMatrix& weight);

// A row as it lies in a file.
void copy_row(const WeightMatrix& weight, std::int64_t row, std::byte* to);
// The values of a row, whatever the matrix is held as.
void dequantise_one(const WeightMatrix& weight, std::int64_t row, float* out);

struct CpuProduct {
  at::Tensor& out;
  const WeightMatrix& weight;
  const at::Tensor& bias;
};
// As Ops::linears(). Of matrices that follow each other and take inputs alike these are prepared once.
void multiply(std::span<const CpuProduct> products, const at::Tensor& input);

// As Ops::mix_experts(): the rows of an expert meet its matrices together, and threads share those of many experts.
void multiply_experts(Activation kind, at::Tensor& out, at::Tensor& gates, at::Tensor& others, const at::Tensor& input,
                      const at::Tensor& ids, const at::Tensor& shares, const ExpertWeights& experts);

}  // namespace motley
