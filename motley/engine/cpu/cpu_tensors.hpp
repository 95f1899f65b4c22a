// Tensors as the loops of cpu_kernels.hpp take them, and loops over the threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "motley/base/error.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"

namespace motley {

// Below this many elements a loop stays on one thread: starting the others would take longer.
constexpr std::int64_t parallel_elements = 16384;

template <class T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <class T>
T* mutable_data_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// Calls step(T{}) with the element type of the tensor.
template <class Step>
void with_type(const at::Tensor& tensor, const Step& step) {
  if (tensor.scalar_type() == at::kFloat) return step(float{});
  MOTLEY_CHECK(tensor.scalar_type() == at::kBFloat16);
  step(Bf16{});
}

// Rows of `columns` elements over the threads.
template <class Step>
void parallel_rows(std::int64_t rows, std::int64_t columns, const Step& step) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, parallel_elements / std::max<std::int64_t>(columns, 1)), step);
}

}  // namespace motley
