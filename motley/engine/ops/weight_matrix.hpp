// A matrix of weights as it is held: values of one type, with scales where these are shared by groups of values.
#pragma once

#include <ATen/ATen.h>

#include "motley/model/model.hpp"

namespace motley {

struct WeightMatrix {
  at::Tensor values = {};    // [outputs, inputs]; of GGUF's types bytes [outputs, bytes of the row's blocks]
  at::Tensor scales = {};    // [outputs, inputs / group]; undefined where the values stand for themselves
  std::int64_t group = 0;    // inputs that share a scale
  DType type = DType::fp32;  // of the values
  // Of GGUF's types: the inputs of the product, and how many columns of the first block come before them, which belong
  // to another rank. The last block may reach beyond the inputs in the same way.
  std::int64_t inputs = 0;
  std::int64_t skipped = 0;
  std::int64_t panel = 0;  // rows that lie interleaved (weight_panels.hpp); 0: row after row
  bool defined() const { return values.defined(); }
  bool scaled() const { return scales.defined(); }
};

// As values of `type` that stand for themselves.
at::Tensor dequantised(const WeightMatrix& matrix, at::ScalarType type);

}  // namespace motley
