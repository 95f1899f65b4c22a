#include "motley/cost/form/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "motley/model/training.hpp"

namespace motley {
namespace {

// Of the matrices that all tokens pass, or of those of one expert.
enum class Of { all_tokens, one_expert };
double matrix_elements(const Architecture& arch, const std::vector<TensorSpec>& tensors, const Shard& shard,
                       Of of = Of::all_tokens) {
  double elements = 0;
  for (const auto& tensor : tensors)
    if (tensor.is_matrix() && (tensor.experts > 0) == (of == Of::one_expert))
      elements += static_cast<double>(slice_of(arch, tensor, shard).elements());
  return elements;
}

double expert_bytes(const Architecture& arch, const std::vector<TensorSpec>& tensors, const Shard& shard,
                    DType weight_type) {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors)
    if (tensor.experts > 0)
      bytes +=
          held_copies(tensor, shard) * held_bytes(slice_of(arch, tensor, shard), held_type(arch, tensor, weight_type));
  return static_cast<double>(bytes);
}

// Of a file one that is mixed counts as quantised: most of its bytes are.
bool has_quantised(const Architecture& arch, DType weight_type) {
  if (weight_type != DType::file) return is_quantised(weight_type);
  return std::ranges::any_of(arch.tensor_types, [](const auto& entry) { return is_quantised(entry.second); });
}

// Of one token, of the rank's part of a delta net's states.
double state_flops(const Architecture& arch, std::int64_t layer, const Shard& shard) {
  const DeltaNet& delta = arch.kind(layer).delta;
  if (!delta) return 0;
  return delta_flops(delta) * static_cast<double>(shard.delta[arch.kind_index(layer)].size()) /
         static_cast<double>(delta.key_heads);
}

// `of_kinds`: the tensors of a block, by kind of layer: listing them takes longer than what is asked of them here.
Rank make_rank(const Architecture& arch, const std::vector<std::vector<TensorSpec>>& of_kinds, const DeviceType& type,
               const Shard& shard, DType weight_type, DType kv_type, const StepLimits& step) {
  Rank rank{.memory_bytes = type.memory_bytes,
            .memory_bandwidth_bytes_per_s = type.memory_bandwidth_bytes_per_s,
            .flop_per_s = product_flop_per_s(type, weight_type),
            .efficiency = type.efficiency,
            .unpacks = has_quantised(arch, weight_type),
            .overhead = type.overhead};
  for (const StageEnds ends : all_ends) {
    const ModelPart part{.layers = {}, .embedding = ends.first, .head = ends.last};
    rank.fixed_bytes[ends_index(ends)] = type.reserve_bytes.value_or(0) + weight_bytes(arch, part, shard, weight_type) +
                                         activation_bytes(arch, part, shard, weight_type, step);
  }
  for (const std::int64_t layer : layer_of_kinds(arch)) {
    const LayerKind& kind = arch.kind(layer);
    const std::vector<TensorSpec>& tensors = of_kinds[arch.kind_index(layer)];
    const std::int64_t held_experts = shard.experts[arch.kind_index(layer)].size();
    const double all_experts = static_cast<double>(std::max<std::int64_t>(1, kind.experts.count)),
                 share = static_cast<double>(held_experts) / all_experts;
    const double expert_flops =
        2 * share * static_cast<double>(kind.experts.active) * matrix_elements(arch, tensors, shard, Of::one_expert);
    const std::int64_t elements = element_traffic_per_token(arch, layer, shard).forward;
    rank.blocks.push_back(
        {.bytes = block_bytes(arch, tensors, shard, weight_type),
         .expert_bytes = expert_bytes(arch, tensors, shard, weight_type),
         .experts = kind.experts,
         .held_experts = held_experts,
         .windowed = kind.window > 0,
         .kv_bytes = static_cast<double>(kv_bytes_per_token(arch, layer, kv_type)) *
                     static_cast<double>(shard.kv_heads[arch.kind_index(layer)].size()) /
                     static_cast<double>(kind.kv_heads),
         .attention_flops = attention_flops(arch, layer) *
                            static_cast<double>(shard.heads[arch.kind_index(layer)].size()) /
                            static_cast<double>(arch.heads),
         .state_bytes = static_cast<double>(state_bytes(arch, layer, shard)),
         .flops = 2 * matrix_elements(arch, tensors, shard) + expert_flops + state_flops(arch, layer, shard),
         .expert_flops = expert_flops,
         .element_bytes = static_cast<double>(bytes_of(dtype_row(weight_type).computed_in, elements))});
  }
  rank.head_bytes =
      static_cast<double>(weight_bytes(arch, {.layers = {}, .embedding = false, .head = true}, shard, weight_type));
  rank.head_flops = 2 * matrix_elements(arch, head_tensors(arch), shard);
  return rank;
}

}  // namespace

double product_flop_per_s(const DeviceType& type, DType weight_type) {
  // The type itself, then others of its width, then wider ones.
  const DTypeRow& computed = dtype_row(dtype_row(weight_type).rated_in);
  std::vector<DType> order = {computed.type};
  for (const bool wider : {false, true})
    for (const DType other : dtypes_with(Support::planned, Use::values))
      if (other != computed.type && dtype_row(other).bits_per_value() >= computed.bits_per_value() &&
          (dtype_row(other).bits_per_value() > computed.bits_per_value()) == wider)
        order.push_back(other);
  for (const DType in : order)
    if (const auto found = type.flop_per_s.find(std::string(name_of(in))); found != type.flop_per_s.end())
      return found->second;
  // A matrix unit is never slower in a wider type than asked by more than the ratio of the widths.
  if (const auto half = type.flop_per_s.find("fp16"); half != type.flop_per_s.end()) return half->second / 2;
  if (const auto half = type.flop_per_s.find("bf16"); half != type.flop_per_s.end()) return half->second / 2;
  throw input_error(
      fmt::format("the device type \"{}\" has no FLOP/s for {} products", type.name, name_of(weight_type)),
      "give `flops` in its [[device_type]]");
}

TensorGroup make_group(const Cluster& cluster, const Architecture& arch, std::vector<int> devices,
                       const std::vector<double>& shares, DType weight_type, DType kv_type, const StepLimits& step,
                       const std::vector<std::int64_t>& expert_shares) {
  TensorGroup group{.weight_type = weight_type, .kv_type = kv_type};
  group.shards = make_shards(arch, static_cast<int>(devices.size()), shares, weight_type, expert_shares);
  std::vector<std::vector<TensorSpec>> of_kinds;
  for (const std::int64_t layer : layer_of_kinds(arch)) of_kinds.push_back(block_tensors(arch, layer));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const DeviceType& type = cluster.type_of(devices[i]);
    const bool like_before = i > 0 && cluster.devices[devices[i]].type == cluster.devices[devices[i - 1]].type;
    if (like_before && of_one_size(group.shards[i], group.shards[i - 1]))
      group.ranks.push_back(group.ranks.back());
    else
      group.ranks.push_back(make_rank(arch, of_kinds, type, group.shards[i], weight_type, kv_type, step));
  }
  return group_on(cluster, std::move(group), std::move(devices));
}

TensorGroup group_on(const Cluster& cluster, TensorGroup group, std::vector<int> devices) {
  group.link = {0, std::numeric_limits<double>::infinity()};
  for (const int from : devices)
    for (const int to : devices) {
      if (from == to) continue;
      const PathSpeed path = cluster.link(from, to);
      group.link = {std::max(group.link.latency_s, path.latency_s),
                    std::min(group.link.bandwidth_bytes_per_s, path.bandwidth_bytes_per_s)};
    }
  group.devices = std::move(devices);
  return group;
}

std::int64_t largest_block_bytes(const Rank& rank) {
  return std::ranges::max(rank.blocks, {}, &BlockWork::bytes).bytes;
}

std::int64_t most_layers_in_memory(const Architecture& arch, const TensorGroup& group, StageEnds ends,
                                   const CacheRoom& caches, const StepLimits& step) {
  std::int64_t most = arch.layers;
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const Rank& rank = group.ranks[i];
    std::int64_t kv = 0;
    for (const std::int64_t layer : layer_of_kinds(arch))
      kv = std::max(kv, cache_bytes(arch, layer, group.shards[i], group.kv_type, caches, step));
    const std::int64_t room = rank.memory_bytes - rank.fixed_bytes[ends_index(ends)];
    most = std::min(most, room < 0 ? 0 : room / (largest_block_bytes(rank) + kv));
  }
  return most;
}

// Bytes of a rank count as if its memory were the smallest rank's.
LayerRoom layer_room(const Architecture& arch, const TensorGroup& group, const CacheRoom& caches,
                     const StepLimits& step) {
  const std::size_t kinds = arch.kinds.size();
  LayerRoom room{.size = std::vector<std::int64_t>(kinds, 1)};
  if (kinds == 1) {
    for (const StageEnds ends : all_ends)
      room.capacity[ends_index(ends)] = most_layers_in_memory(arch, group, ends, caches, step);
    return room;
  }
  const auto free = [](const Rank& rank, std::size_t ends) {
    return std::max<std::int64_t>(0, rank.memory_bytes - rank.fixed_bytes[ends]);
  };
  const auto least = std::ranges::min(group.ranks, {}, [&](const Rank& rank) { return free(rank, 0); });
  std::ranges::fill(room.capacity, free(least, 0));
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    const Rank& rank = group.ranks[i];
    if (free(rank, 0) == 0) return {.size = room.size};
    const double scale = static_cast<double>(free(least, 0)) / static_cast<double>(free(rank, 0));
    const auto scaled = [&](std::int64_t bytes) { return scale * static_cast<double>(bytes); };
    const std::vector<std::int64_t> layers = layer_of_kinds(arch);
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      const std::int64_t kv = cache_bytes(arch, layers[kind], group.shards[i], group.kv_type, caches, step);
      room.size[kind] =
          std::max(room.size[kind], static_cast<std::int64_t>(std::ceil(scaled(rank.blocks[kind].bytes + kv))));
    }
    for (std::size_t ends = 0; ends < std::size(room.capacity); ++ends)
      room.capacity[ends] =
          std::min(room.capacity[ends], static_cast<std::int64_t>(std::floor(scaled(free(rank, ends)))));
  }
  return room;
}

double all_reduce_s(const TensorGroup& group, double bytes) {
  const double n = group.degree();
  if (n < 2) return 0;
  const double ring = 2 * (n - 1) * group.link.seconds(bytes / n);
  const double direct = group.link.seconds((n - 1) * bytes);
  return std::min(ring, direct);
}

double all_gather_s(const TensorGroup& group, double bytes) {
  const double n = group.degree();
  return n < 2 ? 0 : group.link.seconds((n - 1) / n * bytes);
}

bool crosses_machines(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to) {
  const int machine = cluster.devices[from.front()].machine;
  const auto elsewhere = [&](int device) { return cluster.devices[device].machine != machine; };
  return std::ranges::any_of(from, elsewhere) || std::ranges::any_of(to, elsewhere);
}

PathSpeed best_link(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to, double bytes) {
  PathSpeed best;
  double least = std::numeric_limits<double>::infinity();
  for (const int a : from)
    for (const int b : to) {
      if (a == b) continue;
      const PathSpeed path = cluster.link(a, b);
      if (path.seconds(bytes) < least) {
        least = path.seconds(bytes);
        best = path;
      }
    }
  return best;
}

PathSpeed driver_way(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to) {
  const auto nearer = [](const PathSpeed& a, const PathSpeed& b) { return a.latency_s < b.latency_s; };
  std::vector<PathSpeed> ups, downs;
  for (const int device : from) ups.push_back(cluster.to_driver(device));
  for (const int device : to) downs.push_back(cluster.from_driver(device));
  const PathSpeed up = *std::ranges::min_element(ups, nearer), down = *std::ranges::min_element(downs, nearer);
  return {up.latency_s + down.latency_s, 1 / (1 / up.bandwidth_bytes_per_s + 1 / down.bandwidth_bytes_per_s)};
}

}  // namespace motley
