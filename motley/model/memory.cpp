#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// The allocator hands out memory in units of one cache line.
constexpr std::int64_t alignment = 64;

std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, alignment); }

std::int64_t tensor_bytes(const Architecture& arch, const TensorSpec& tensor, const Shard& shard, DType weight_type) {
  return held_copies(tensor, shard) *
         aligned(held_bytes(slice_of(arch, tensor, shard), held_type(arch, tensor, weight_type)));
}

}  // namespace

std::int64_t Buffer::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::int64_t Buffer::bytes() const {
  return aligned(type ? bytes_of(*type, elements()) : elements() * std::int64_t{sizeof(std::int64_t)});
}

DType held_type(const Architecture& arch, const TensorSpec& tensor, DType weight_type) {
  const DType computed = dtype_row(weight_type).computed_in;
  if (tensor.is_exact()) return DType::fp32;
  if (!tensor.may_be_quantised()) return computed;
  if (weight_type == DType::int8 || weight_type == DType::int4) return tensor.in_block ? weight_type : computed;
  DType type = weight_type;
  if (type == DType::file) {
    const auto stored = arch.tensor_types.find(tensor.type_name());
    MOTLEY_CHECK(stored != arch.tensor_types.end());
    type = stored->second;
  } else if (is_quantised(type)) {
    type = fitting(type, tensor.shape[1]);
  }
  return type == DType::bf16 ? computed : type;
}

Span whole_blocks(DType type, const Span& columns) {
  const std::int64_t block = dtype_row(type).block_values;
  return {columns.first / block * block, round_up(columns.end, block)};
}

std::int64_t held_bytes(const Slice& slice, DType type) {
  if (!is_quantised(type)) return bytes_of(type, slice.elements());
  return slice.times * slice.rows.size() * bytes_of(type, whole_blocks(type, slice.columns).size());
}

std::int64_t block_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType weight_type) {
  return block_bytes(arch, block_tensors(arch, layer), shard, weight_type);
}

std::int64_t block_bytes(const Architecture& arch, std::span<const TensorSpec> tensors, const Shard& shard,
                         DType weight_type) {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) bytes += tensor_bytes(arch, tensor, shard, weight_type);
  return bytes;
}

std::int64_t weight_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type) {
  std::int64_t bytes = sum_over_layers(
      arch, part.layers, [&](std::int64_t layer) { return block_bytes(arch, layer, shard, weight_type); });
  for (const TensorSpec& tensor : part_tensors(arch, ends_of(part)))
    bytes += tensor_bytes(arch, tensor, shard, weight_type);
  return bytes;
}

std::int64_t largest_block_bytes(const Architecture& arch, const Shard& shard, DType weight_type) {
  std::int64_t most = 0;
  for (const std::int64_t layer : layer_of_kinds(arch))
    most = std::max(most, block_bytes(arch, layer, shard, weight_type));
  return most;
}

std::int64_t state_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const DeltaNet& delta = arch.kind(layer).delta;
  if (!delta) return 0;
  const std::int64_t keys = shard.delta.at(arch.kind_index(layer)).size();
  const std::int64_t values = keys * delta.values_of_key() * delta.value_dim;
  return bytes_of(DType::fp32, values * delta.key_dim + (2 * keys * delta.key_dim + values) * (delta.width - 1));
}

void check_kv_type(const Architecture& arch, DType kv_type) {
  const std::int64_t block = dtype_row(kv_type).block_values;
  for (const LayerKind& kind : arch.kinds)
    if (!kind.delta && kind.head_dim % block != 0)
      throw input_error(
          fmt::format("{} keys and values come in blocks of {} along a head, and the model's head_dim is {}",
                      name_of(kv_type), block, kind.head_dim),
          "set `kv_type` (`--kv-type`) to fp32 or bf16");
}

std::int64_t kv_cache_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType kv_type,
                            std::int64_t tokens, std::int64_t block_tokens) {
  const std::int64_t blocks = ceil_div(tokens, block_tokens), kv_heads = shard.kv_heads[arch.kind_index(layer)].size();
  return 2 * aligned(bytes_of(kv_type, blocks * block_tokens * kv_heads * arch.kind(layer).head_dim));
}

std::int64_t largest_kv_bytes(const Architecture& arch, const Shard& shard, DType kv_type, std::int64_t tokens,
                              std::int64_t block_tokens) {
  std::int64_t most = 0;
  for (const std::int64_t layer : layer_of_kinds(arch))
    most = std::max(most, kv_cache_bytes(arch, layer, shard, kv_type, tokens, block_tokens));
  return most;
}

std::vector<Buffer> activation_buffers(const Architecture& arch, const ModelPart& part, const Shard& shard,
                                       DType weight_type, const StepLimits& limits) {
  const DType type = dtype_row(weight_type).computed_in;
  const std::int64_t tokens = limits.max_tokens;
  const std::int64_t sequences = limits.max_sequences;
  std::int64_t query = 0, key = 0, widest = 0, experts = 0, active = 0, key_rows = 0, value_rows = 0, value_heads = 0;
  bool shared_gate = false, own_norms = false;
  for (std::size_t i = 0; i < arch.kinds.size(); ++i) {
    const Experts& of = arch.kinds[i].experts;
    query = std::max(query, shard.heads[i].size() * arch.kinds[i].head_dim);
    key = std::max(key, shard.kv_heads[i].size() * arch.kinds[i].head_dim);
    widest = std::max({widest, arch.kinds[i].active_ffns() * shard.columns[i].size(), shard.shared[i].size()});
    experts = std::max(experts, of.count);
    active = std::max(active, of.active);
    shared_gate = shared_gate || of.shared_gate;
    own_norms = own_norms || of.own_norms;
    if (const DeltaNet& delta = arch.kinds[i].delta) {
      const std::int64_t heads = shard.delta[i].size();
      key_rows = std::max(key_rows, heads * delta.key_dim);
      value_heads = std::max(value_heads, heads * delta.values_of_key());
      value_rows = std::max(value_rows, heads * delta.values_of_key() * delta.value_dim);
    }
  }
  std::vector<Buffer> buffers = {
      {"tokens", std::nullopt, {tokens}},
      {"positions", std::nullopt, {tokens}},
      {"hidden", type, {tokens, arch.hidden}},
      {"normed", type, {tokens, arch.hidden}},
      {"query", type, {tokens, query}},
      {"key", type, {tokens, key}},
      {"value", type, {tokens, key}},
      {"attention", type, {tokens, query}},
      {"projected", type, {tokens, arch.hidden}},
      {"up", type, {tokens, widest}},
  };
  if (arch.gated) buffers.push_back({"gate", type, {tokens, widest}});
  if (arch.output_gate) buffers.push_back({"gated_query", type, {tokens, 2 * query}});
  if (value_heads > 0) {
    buffers.push_back({"mixed", type, {tokens, 2 * key_rows + value_rows}});
    buffers.push_back({"delta_gate", type, {tokens, value_rows}});
    buffers.push_back({"delta_output", type, {tokens, value_rows}});
    buffers.push_back({"delta_rates", DType::fp32, {2, tokens, value_heads}});
  }
  if (experts > 0) {
    buffers.push_back({"routed", DType::fp32, {tokens, experts}});
    buffers.push_back({"chosen", std::nullopt, {tokens, active}});
    buffers.push_back({"shares", DType::fp32, {tokens, active}});
  }
  if (shared_gate) buffers.push_back({"shared_share", DType::fp32, {tokens, 1}});
  if (own_norms) buffers.push_back({"routed_output", type, {tokens, arch.hidden}});
  if (arch.qk_norm == QkNorm::whole) buffers.push_back({"squares", DType::fp32, {tokens, 2}});
  if (!part.embedding) buffers.push_back({"incoming", type, {2 * tokens, arch.hidden}});
  if (part.embedding && arch.embedding_dim > 0) buffers.push_back({"embedded", type, {tokens, arch.embedding_dim}});
  if (part.head) {
    buffers.push_back({"last", type, {sequences, arch.hidden}});
    if (arch.embedding_dim > 0) buffers.push_back({"last_embedded", type, {sequences, arch.embedding_dim}});
    buffers.push_back({"logits", DType::fp32, {sequences, shard.vocabulary.size()}});
    if (shard.vocabulary.size() < arch.vocabulary)
      buffers.push_back({"all_logits", DType::fp32, {sequences, arch.vocabulary}});
  }
  return buffers;
}

std::int64_t activation_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type,
                              const StepLimits& limits) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : activation_buffers(arch, part, shard, weight_type, limits)) bytes += buffer.bytes();
  return bytes;
}

}  // namespace motley
