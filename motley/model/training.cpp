#include "motley/model/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

std::int64_t held(const Architecture& arch, const std::vector<TensorSpec>& tensors, const Shard& shard) {
  std::int64_t elements = 0;
  for (const TensorSpec& tensor : tensors)
    elements += held_copies(tensor, shard) * slice_of(arch, tensor, shard).elements();
  return elements;
}

// FFN columns of the rank that a token passes, those of the shared expert among them. Of whole experts as many as on
// average.
std::int64_t passed_columns(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::size_t kind = arch.kind_index(layer);
  std::int64_t columns = arch.kind(layer).active_ffns() * shard.columns.at(kind).size();
  if (const std::int64_t experts = arch.kind(layer).experts.count; experts > 0)
    columns = columns * shard.experts.at(kind).size() / experts;
  return columns + shard.shared.at(kind).size();
}

}  // namespace

std::string untrainable(const Architecture& arch) {
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    if (arch.kind(layer).delta) return fmt::format("layer {}: it is a gated delta net", layer);
  if (arch.output_gate) return "layer 0: its attention has an output gate";
  if (arch.sinks) return "layer 0: its attention has sinks";
  if (arch.qk_norm == QkNorm::whole) return "layer 0: its norms of queries and keys are over all heads together";
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
    if (arch.kind(layer).experts.own_norms)
      return fmt::format("layer {}: its experts and the FFN at their side have norms of their own", layer);
    if (arch.kind(layer).keys_are_values) return fmt::format("layer {}: its keys are its values, too", layer);
  }
  if (arch.value_norm) return "layer 0: its attention has norms of values";
  if (arch.layer_factors) return "layer 0: a learned factor is on what leaves it";
  return arch.logit_cap > 0 ? "its logits are capped" : "";
}

std::int64_t rank_parameters(const Architecture& arch, const ModelPart& part, const Shard& shard) {
  const auto of_block = [&](std::int64_t layer) { return held(arch, block_tensors(arch, layer), shard); };
  return held(arch, part_tensors(arch, ends_of(part)), shard) + sum_over_layers(arch, part.layers, of_block);
}

std::int64_t backward_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::size_t kind = arch.kind_index(layer);
  const std::int64_t columns = std::max(shard.columns.at(kind).size(), shard.shared.at(kind).size());
  return (arch.kinds[kind].experts.count > 0 ? 6 : 3) * arch.hidden + (arch.gated ? 3 : 2) * columns;
}

namespace {

// Of a rank's queries and keys.
std::int64_t head_elements(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::size_t kind = arch.kind_index(layer);
  return (shard.heads[kind].size() + shard.kv_heads[kind].size()) * arch.kinds[kind].head_dim;
}

}  // namespace

std::int64_t stored_elements_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::int64_t attention = 2 * head_elements(arch, layer, shard);
  const Experts& experts = arch.kind(layer).experts;
  const std::int64_t routing = experts.active * (2 * arch.hidden + 7) + experts.count;
  return (arch.output_norms ? 6 : 4) * arch.hidden + attention +
         (arch.gated ? 3 : 2) * passed_columns(arch, layer, shard) + routing;
}

ElementTraffic element_traffic_per_token(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const std::int64_t rotated = arch.position == PositionKind::rotary ? head_elements(arch, layer, shard) : 0;
  const std::int64_t ffn = passed_columns(arch, layer, shard);
  const std::int64_t norms = arch.output_norms ? 4 : 2, sums = arch.kind(layer).experts.shared_ffn > 0 ? 3 : 2;
  return {.forward = (norms * 2 + sums * 3) * arch.hidden + 2 * rotated + (arch.gated ? 3 : 2) * ffn,
          .backward = (norms * 3 + sums * 3) * arch.hidden + 2 * rotated + (arch.gated ? 5 : 3) * ffn};
}

ElementTraffic loss_bytes_per_token(const Shard& shard) {
  const std::int64_t once = 4 * shard.vocabulary.size();
  return {.forward = 2 * once, .backward = 3 * once};
}

std::int64_t logit_bytes_per_token(const Shard& shard, DType type) {
  return (type == DType::fp32 ? 4 : 4 + 2) * shard.vocabulary.size();
}

}  // namespace motley
