#include "motley/planner/serve/pipeline/offloading.hpp"

#include <algorithm>
#include <cmath>

#include "motley/cluster/host_reserve.hpp"
#include "motley/cost/serve/pass.hpp"

namespace motley {
namespace {

// Bytes that one placement of keys and values leaves for weights.
struct WeightRoom {
  std::int64_t device = 0, host = 0, disk = 0;
  std::int64_t layer = 0;
  bool staged = false;  // what comes from disk passes two buffers in host memory

  // The most on the device, with two buffers for those that are not. Negative: not even these.
  std::int64_t most_on_device(std::int64_t layers) const {
    if (device >= layers * layer) return layers;
    const std::int64_t left = device - offload_buffers * layer;
    return left < 0 ? -1 : std::min(layers - 1, left / layer);
  }
  // The same of those that are away.
  std::int64_t most_on_host(std::int64_t away) const {
    if (host >= away * layer) return away;
    const std::int64_t left = host - (staged ? offload_buffers * layer : 0);
    return left < 0 ? -1 : std::min(away - 1, left / layer);
  }
};

struct KvHome {
  bool on_device = true;
  bool cpu_attention = false;
};

}  // namespace

std::optional<MemoryTiers> offload_tiers(const ServeProblem& problem, int device) {
  const bool possible = problem.options.offloading == Offloading::where_better && problem.phase == Phase::both &&
                        problem.options.cost.form == "motley";
  if (!possible) return {};
  MemoryTiers tiers = tiers_of(problem.cluster, device);
  tiers.host_bytes -= host_reserve_bytes(tiers.host_bytes);
  if (tiers.host_bytes == 0 && !tiers.disk) return {};
  const auto machine = static_cast<std::size_t>(problem.cluster.devices[static_cast<std::size_t>(device)].machine);
  return shared_among(tiers, std::ssize(problem.cluster.machines[machine].devices));
}

std::vector<std::int64_t> offload_sizes(std::int64_t layers) {
  std::vector<std::int64_t> sizes;
  const std::int64_t count = std::min(layers, most_offload_sizes);
  for (std::int64_t i = 1; i <= count; ++i) sizes.push_back(i * layers / count);
  return sizes;
}

std::optional<StreamedStage> place_offloaded(const ServeForm& form, const Architecture& arch, const TensorGroup& group,
                                             StageEnds ends, const LayerCounts& kinds, const CacheRoom& caches,
                                             std::int64_t block_tokens, const MemoryTiers& tiers) {
  const Rank& rank = group.ranks.front();
  const std::int64_t layers = std::llround(sum_of_layers(kinds));
  const Shard& shard = group.shards.front();
  const std::int64_t kv_layer = largest_kv_bytes(arch, shard, group.kv_type, caches.tokens, block_tokens);
  double states = 0;
  const std::vector<std::int64_t> of_kinds = layer_of_kinds(arch);
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    states += kinds[kind] * static_cast<double>(states_bytes(arch, of_kinds[kind], shard, caches.sequences));
  const std::int64_t free = rank.memory_bytes - rank.fixed_bytes[ends_index(ends)] - std::llround(std::ceil(states));
  // On a processor the host's memory is its own: attention there needs no copy.
  std::vector<KvHome> homes = {{.on_device = true}, {.on_device = false, .cpu_attention = true}};
  if (!tiers.is_processor) homes.push_back({.on_device = false});

  std::optional<StreamedStage> best;
  double least_s = 0;
  for (const KvHome& home : homes) {
    const std::int64_t kv_on_device = home.on_device       ? layers * kv_layer
                                      : home.cpu_attention ? 0
                                                           : offload_buffers * kv_layer;
    const WeightRoom room{.device = free - kv_on_device,
                          .host = tiers.host_bytes - (home.on_device ? 0 : layers * kv_layer),
                          .disk = tiers.disk ? tiers.disk->capacity_bytes : 0,
                          .layer = largest_block_bytes(rank),
                          .staged = !tiers.is_processor};
    const std::int64_t resident = room.most_on_device(layers);
    if (resident < 0 || room.host < 0 || (resident == layers && home.on_device)) continue;
    const std::int64_t away = layers - resident;
    const std::int64_t most = room.most_on_host(away), fewest = tiers.is_processor && tiers.disk ? 0 : most;
    for (std::int64_t on_host = most; on_host >= std::max<std::int64_t>(fewest, 0); --on_host) {
      if ((away - on_host) * room.layer > room.disk) break;
      const TierCounts kv = home.on_device ? TierCounts{.device = layers} : TierCounts{.host = layers};
      const StreamedStage stage{
          .tiers = tiers,
          .counts = {.weights = {resident, on_host, away - on_host}, .kv = kv, .activations = {.device = 1}},
          .batches = 1,
          .cpu_attention = home.cpu_attention,
          .kinds = kinds};
      const double seconds = form.streamed(group, ends, stage).latency.sum();
      if (best && seconds >= least_s) continue;
      least_s = seconds;
      best = stage;
    }
  }
  return best;
}

Offload offload_of(const StreamedStage& stage) {
  return {.batches = stage.batches,
          .weights = shares_of(stage.counts.weights),
          .kv = shares_of(stage.counts.kv),
          .activations = shares_of(stage.counts.activations),
          .cpu_attention = stage.cpu_attention};
}

}  // namespace motley
