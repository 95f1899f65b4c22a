#include <algorithm>

#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// Of those that a token passes: of its experts alone.
std::int64_t passed_elements(const std::vector<TensorSpec>& tensors, std::int64_t active) {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors)
    if (tensor.is_matrix()) sum += (tensor.experts > 0 ? active : 1) * tensor.elements();
  return sum;
}

}  // namespace

std::vector<std::int64_t> kind_counts(const Architecture& arch, const LayerRange& layers) {
  std::vector<std::int64_t> counts(arch.kinds.size());
  if (arch.kinds.size() == 1)
    counts.front() = layers.size();
  else
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) ++counts[arch.kind_index(layer)];
  return counts;
}

std::int64_t attention_layers(const Architecture& arch) {
  return sum_over_layers(arch, {0, arch.layers},
                         [&](std::int64_t layer) -> std::int64_t { return arch.kind(layer).delta ? 0 : 1; });
}

std::int64_t widest_window(const Architecture& arch) {
  return std::ranges::max(arch.kinds, {}, &LayerKind::window).window;
}

std::int64_t largest_head(const Architecture& arch) {
  return std::ranges::max(arch.kinds, {}, &LayerKind::head_dim).head_dim;
}

bool alike_heads(const Architecture& arch) {
  const LayerKind& first = arch.kinds.front();
  return std::ranges::all_of(arch.kinds, [&](const LayerKind& kind) {
    return kind.kv_heads == first.kv_heads && kind.head_dim == first.head_dim;
  });
}

std::int64_t narrowest_ffn(const Architecture& arch) { return std::ranges::min(arch.kinds, {}, &LayerKind::ffn).ffn; }

std::vector<std::int64_t> layer_of_kinds(const Architecture& arch) {
  std::vector<std::int64_t> first(arch.kinds.size(), 0);
  for (std::int64_t layer = arch.layers; layer-- > 0;) first[arch.kind_index(layer)] = layer;
  return first;
}

std::int64_t block_parameters(const Architecture& arch, std::int64_t layer) {
  return parameters_of(block_tensors(arch, layer));
}

double mean_block_parameters(const Architecture& arch) {
  const std::int64_t ends = parameters_of(part_tensors(arch, ends_of(whole_model(arch))));
  return static_cast<double>(total_parameters(arch) - ends) / static_cast<double>(arch.layers);
}

std::int64_t total_parameters(const Architecture& arch) {
  const auto of_block = [&](std::int64_t layer) { return block_parameters(arch, layer); };
  return parameters_of(part_tensors(arch, ends_of(whole_model(arch)))) +
         sum_over_layers(arch, {0, arch.layers}, of_block);
}

std::int64_t active_parameters(const Architecture& arch) {
  const auto not_taken = [&](std::int64_t layer) {
    std::int64_t elements = 0;
    for (const TensorSpec& tensor : block_tensors(arch, layer))
      if (tensor.experts > 0) elements += (tensor.experts - arch.kind(layer).experts.active) * tensor.elements();
    return elements;
  };
  return total_parameters(arch) - sum_over_layers(arch, {0, arch.layers}, not_taken);
}

double block_flops(const Architecture& arch, std::int64_t layer, double context) {
  const LayerKind& kind = arch.kind(layer);
  const double seen = kind.window > 0 ? std::min(context, static_cast<double>(kind.window)) : context;
  const double products = 2.0 * static_cast<double>(passed_elements(block_tensors(arch, layer), kind.experts.active));
  return products + (kind.delta ? delta_flops(kind.delta) : attention_flops(arch, layer) * seen);
}

double attention_flops(const Architecture& arch, std::int64_t layer) {
  const LayerKind& kind = arch.kind(layer);
  return kind.delta ? 0 : 4.0 * static_cast<double>(arch.heads * kind.head_dim);
}

double delta_flops(const DeltaNet& delta) {
  return 8.0 * static_cast<double>(delta.value_heads * delta.key_dim * delta.value_dim);
}

double blocks_flops(const Architecture& arch, double context) {
  return sum_over_layers(arch, {0, arch.layers}, [&](std::int64_t layer) { return block_flops(arch, layer, context); });
}

double head_flops(const Architecture& arch) {
  return 2.0 * static_cast<double>(passed_elements(head_tensors(arch), 0));
}

std::int64_t kv_bytes_per_token(const Architecture& arch, std::int64_t layer, DType kv_type) {
  const LayerKind& kind = arch.kind(layer);
  return kind.delta ? 0 : bytes_of(kv_type, 2 * kind.kv_heads * kind.head_dim);
}

std::int64_t kv_bytes_per_token(const Architecture& arch, const LayerRange& layers, DType kv_type) {
  return sum_over_layers(arch, layers, [&](std::int64_t layer) { return kv_bytes_per_token(arch, layer, kv_type); });
}

}  // namespace motley
