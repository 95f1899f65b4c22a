#include <algorithm>

#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

std::int64_t matrix_elements(const std::vector<TensorSpec>& tensors) {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors)
    if (tensor.shape.size() == 2) sum += tensor.elements();
  return sum;
}

}  // namespace

std::int64_t parameters_of(const std::vector<TensorSpec>& tensors) {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.elements();
  return sum;
}

std::int64_t block_parameters(const Architecture& arch) { return parameters_of(block_tensors(arch, 0)); }

std::int64_t total_parameters(const Architecture& arch) {
  const std::int64_t ends = parameters_of(part_tensors(arch, ends_of(whole_model(arch))));
  return ends + arch.layers * block_parameters(arch);
}

double block_flops(const Architecture& arch, double context) {
  const bool windowed = arch.sliding_window > 0 && arch.sliding_layers.empty();
  const double seen = windowed ? std::min(context, static_cast<double>(arch.sliding_window)) : context;
  const double products = 2.0 * static_cast<double>(matrix_elements(block_tensors(arch, 0)));
  const double attention = 4.0 * static_cast<double>(arch.heads * arch.head_dim) * seen;  // scores and weighted values
  return products + attention;
}

double head_flops(const Architecture& arch) { return 2.0 * static_cast<double>(matrix_elements(head_tensors(arch))); }

std::int64_t kv_bytes_per_token(const Architecture& arch, DType kv_type) {
  return bytes_of(kv_type, 2 * arch.kv_heads * arch.head_dim);
}

}  // namespace motley
