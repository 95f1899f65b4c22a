#include "motley/plan/serve_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"

namespace motley {
namespace {

TierMemory tier_memory(const RankMemory& bytes) {
  return {.weights = bytes.weights, .kv = bytes.kv, .activations = bytes.activations};
}

// Of the copies in one tier.
std::int64_t standby_bytes(const Architecture& arch, const Stage& stage, const Shard& shard, StandbyTier tier) {
  const auto bytes = [&](const ModelPart& part) { return weight_bytes(arch, part, shard, stage.weight_type); };
  const ModelPart own{{}, stage.embedding, stage.head};
  ModelPart ends = own;
  std::int64_t blocks = 0;
  for (const StandbyWeights& standby : stage.standby_weights) {
    if (standby.tier != tier) continue;
    blocks += bytes({.layers = standby.layers});
    ends.embedding = ends.embedding || standby.layers.first == 0;
    ends.head = ends.head || standby.layers.end == arch.layers;
  }
  return blocks + bytes(ends) - bytes(own);
}

}  // namespace

const Stage& ServePlan::stage(const std::string& id) const {
  std::vector<std::string> ids;
  for (const auto& candidate : stages) {
    if (candidate.id == id) return candidate;
    ids.push_back(candidate.id);
  }
  throw input_error(fmt::format("the plan has no stage \"{}\"", id),
                    did_you_mean(id, ids, fmt::format("choose one of {}", fmt::join(ids, ", "))));
}

std::vector<Shard> stage_shards(const Architecture& arch, const Stage& stage) {
  return make_shards(arch, static_cast<int>(stage.devices.size()), stage.shares, stage.weight_type,
                     stage.expert_shares);
}

std::vector<DeviceMemory> stage_memory(const ServePlan& plan, const Stage& stage) {
  const Architecture& arch = plan.model.arch;
  const ModelPart part{stage.layers, stage.embedding, stage.head};
  const std::vector<Shard> shards = stage_shards(arch, stage);
  std::vector<DeviceMemory> memory;
  for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
    const int device = plan.cluster.find_device(stage.devices[rank]);
    const DeviceType& type = plan.cluster.type_of(device);
    DeviceMemory bytes;
    if (stage.offload) {
      const MemoryTiers tiers = tiers_of(plan.cluster, device);
      const PlacedBytes placed = placed_bytes(arch, part, shards[rank], stage.weight_type, stage.kv_type,
                                              {stage.kv_tokens, stage.kv_sequences}, plan.step,
                                              place_layers(*stage.offload, stage.layers.size()), !tiers.is_processor);
      bytes = {
          .device = tier_memory(placed.device), .host = tier_memory(placed.host), .disk = tier_memory(placed.disk)};
      bytes.host.limit = tiers.host_bytes;
      bytes.disk.limit = tiers.disk ? tiers.disk->capacity_bytes : 0;
    } else {
      bytes.device = {.weights = weight_bytes(arch, part, shards[rank], stage.weight_type),
                      .kv = cache_bytes(arch, stage.layers, shards[rank], stage.kv_type, cache_room(stage), plan.step),
                      .activations = activation_bytes(arch, part, shards[rank], stage.weight_type, plan.step)};
    }
    bytes.device.standby = standby_bytes(arch, stage, shards[rank], StandbyTier::device);
    if (const std::int64_t on_host = standby_bytes(arch, stage, shards[rank], StandbyTier::host); on_host > 0) {
      const MemoryTiers tiers = tiers_of(plan.cluster, device);
      (tiers.is_processor ? bytes.device : bytes.host).standby += on_host;
      if (!tiers.is_processor) bytes.host.limit = tiers.host_bytes;
    }
    bytes.device.reserve = type.reserve_bytes.value_or(0);
    bytes.device.limit = type.memory_bytes;
    memory.push_back(bytes);
  }
  return memory;
}

CacheRoom cache_room(const Stage& stage) { return {stage.kv_tokens, stage.offload ? 0 : stage.kv_sequences}; }

std::int64_t tokens_in(const ServePlan& plan, const Stage& stage, std::size_t rank, std::int64_t bytes,
                       std::int64_t most) {
  const Architecture& arch = plan.model.arch;
  const Shard shard = stage_shards(arch, stage).at(rank);
  CacheRoom room = cache_room(stage);
  std::int64_t fits = 0, too_many = most / plan.step.block_tokens + 1;  // blocks
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    room.tokens = middle * plan.step.block_tokens;
    (cache_bytes(arch, stage.layers, shard, stage.kv_type, room, plan.step) <= bytes ? fits : too_many) = middle;
  }
  return fits * plan.step.block_tokens;
}

std::vector<SlotWindow> slot_windows(const ServePlan& plan) {
  std::vector<SlotWindow> windows;
  for (const Stage& stage : plan.stages)
    for (std::int64_t layer = stage.layers.first; layer < stage.layers.end; ++layer) {
      const LayerKind& kind = plan.model.arch.kind(layer);
      const SlotWindow of{kind.window, slot_blocks(kind, cache_room(stage), plan.step)};
      if (of.blocks > 0 && std::ranges::find(windows, of) == windows.end()) windows.push_back(of);
    }
  return windows;
}

std::vector<LayerRange> held_layers(const Stage& stage, const LayerRange& layers) {
  std::vector<LayerRange> held;
  const auto add_both = [&](const LayerRange& other) {
    const LayerRange both{std::max(layers.first, other.first), std::min(layers.end, other.end)};
    if (both.size() > 0) held.push_back(both);
  };
  add_both(stage.layers);
  for (const StandbyWeights& standby : stage.standby_weights) add_both(standby.layers);
  return held;
}

std::int64_t largest_frame_bytes(const ServePlan& plan) {
  const Architecture& arch = plan.model.arch;
  const std::int64_t hidden = plan.step.max_tokens * arch.hidden;
  const std::int64_t logits = plan.step.max_sequences * arch.vocabulary;
  return std::max(hidden, logits) * static_cast<std::int64_t>(sizeof(float));
}

std::optional<std::size_t> hand_over_hop(const ServePlan& plan, const Route& route) {
  for (std::size_t hop = 1; hop < route.path.size(); ++hop)
    if (plan.stage(route.path[hop - 1].stage).role == StageRole::prefill &&
        plan.stage(route.path[hop].stage).role != StageRole::prefill)
      return hop;
  return {};
}

}  // namespace motley
