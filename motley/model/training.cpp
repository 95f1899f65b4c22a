#include "motley/model/training.hpp"

#include <algorithm>
#include <vector>

#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

std::int64_t held(const Architecture& arch, const std::vector<TensorSpec>& tensors, const Shard& shard) {
  std::int64_t elements = 0;
  for (const TensorSpec& tensor : tensors)
    elements += std::max<std::int64_t>(1, tensor.experts) * slice_of(arch, tensor, shard).elements();
  return elements;
}

// FFN columns of the rank that a token passes.
std::int64_t passed_columns(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::int64_t columns = shard.columns.at(arch.kind_index(layer)).size();
  return std::max<std::int64_t>(1, arch.kind(layer).experts.active) * columns;
}

}  // namespace

std::int64_t rank_parameters(const Architecture& arch, const ModelPart& part, const Shard& shard) {
  std::int64_t parameters = held(arch, part_tensors(arch, ends_of(part)), shard);
  const std::vector<std::int64_t> counts = kind_counts(arch, part.layers);
  for (const std::int64_t layer : layer_of_kinds(arch))
    if (const std::int64_t count = counts[arch.kind_index(layer)]; count > 0)
      parameters += count * held(arch, block_tensors(arch, layer), shard);
  return parameters;
}

std::int64_t backward_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  return 3 * arch.hidden + (arch.gated ? 4 : 2) * passed_columns(arch, layer, shard);
}

std::int64_t stored_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::int64_t attention = (2 * shard.heads.size() + 2 * shard.kv_heads.size()) * arch.head_dim;
  const Experts& experts = arch.kind(layer).experts;
  const std::int64_t routing = experts.active * (2 * arch.hidden + 2) + experts.count;
  return 4 * arch.hidden + attention + (arch.gated ? 3 : 2) * passed_columns(arch, layer, shard) + routing;
}

ElementTraffic element_traffic_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::int64_t rotated =
      arch.position == PositionKind::rotary ? (shard.heads.size() + shard.kv_heads.size()) * arch.head_dim : 0;
  const std::int64_t ffn = passed_columns(arch, layer, shard);
  return {.forward = (2 * 2 + 2 * 3) * arch.hidden + 2 * rotated + (arch.gated ? 3 : 2) * ffn,
          .backward = (2 * 3 + 2 * 3) * arch.hidden + 2 * rotated + (arch.gated ? 5 : 3) * ffn};
}

ElementTraffic loss_bytes_per_token(const Shard& shard) {
  const std::int64_t once = 4 * shard.vocabulary.size();
  return {.forward = 2 * once, .backward = 3 * once};
}

std::int64_t logit_bytes_per_token(const Shard& shard, DType type) {
  return (type == DType::fp32 ? 4 : 4 + 2) * shard.vocabulary.size();
}

}  // namespace motley
