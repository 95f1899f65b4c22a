#include "motley/planner/serve/standby.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "motley/cluster/host_reserve.hpp"

namespace motley {
namespace {

bool fits(const ServePlan& plan, const Stage& stage) {
  return std::ranges::all_of(stage_memory(plan, stage),
                             [](const DeviceMemory& memory) { return memory.device.total() <= memory.device.limit; });
}

// The devices of a machine share its host's memory, and leave some to other programs.
bool fits_on_hosts(const ServePlan& plan) {
  std::map<int, std::int64_t> held;  // by machine
  for (const Stage& stage : plan.stages) {
    const std::vector<DeviceMemory> memory = stage_memory(plan, stage);
    for (std::size_t rank = 0; rank < memory.size(); ++rank) {
      if (memory[rank].host.total() == 0) continue;
      const int device = plan.cluster.find_device(stage.devices[rank]);
      const std::int64_t host_bytes = tiers_of(plan.cluster, device).host_bytes;
      std::int64_t& all = held[plan.cluster.devices[static_cast<std::size_t>(device)].machine];
      all += memory[rank].host.total();
      if (all > host_bytes - host_reserve_bytes(host_bytes)) return false;
    }
  }
  return true;
}

bool has_processors(const ServePlan& plan, const Stage& stage) {
  return std::ranges::any_of(stage.devices, [&](const std::string& device) {
    return tiers_of(plan.cluster, plan.cluster.find_device(device)).is_processor;
  });
}

// Of the layers in `on_device` but not in `own`, and of those in `all` but not in `on_device`.
std::vector<StandbyWeights> copies_around(const LayerRange& own, const LayerRange& on_device, const LayerRange& all) {
  std::vector<StandbyWeights> standby;
  const auto add = [&](const LayerRange& layers, StandbyTier tier) {
    if (layers.size() > 0) standby.push_back({layers, tier});
  };
  add({all.first, on_device.first}, StandbyTier::host);
  add({on_device.first, own.first}, StandbyTier::device);
  add({own.end, on_device.end}, StandbyTier::device);
  add({on_device.end, all.end}, StandbyTier::host);
  return standby;
}

// As many layers more as fit, alternately before and behind.
LayerRange grown(LayerRange held, std::int64_t layers, const std::function<bool(const LayerRange&)>& fits_with) {
  const std::array bounds{std::pair(&LayerRange::first, std::int64_t{0}), std::pair(&LayerRange::end, layers)};
  std::array<bool, 2> grows{true, true};
  while (grows[0] || grows[1])
    for (std::size_t side = 0; side < bounds.size(); ++side) {
      const auto& [edge, bound] = bounds[side];
      grows[side] = grows[side] && held.*edge != bound;
      if (!grows[side]) continue;
      LayerRange more = held;
      more.*edge += side == 0 ? -1 : 1;
      grows[side] = fits_with(more);
      if (grows[side]) held = more;
    }
  return held;
}

// What devices have no room for goes to their hosts: from there it comes to a device much sooner than from a disk.
void fill(ServePlan& plan, Stage& stage) {
  stage.standby_weights.clear();
  if (stage.offload) return;
  const std::int64_t layers = plan.model.arch.layers;
  const LayerRange on_device = grown(stage.layers, layers, [&](const LayerRange& held) {
    stage.standby_weights = copies_around(stage.layers, held, held);
    return fits(plan, stage);
  });
  LayerRange all = on_device;
  if (!has_processors(plan, stage))
    all = grown(on_device, layers, [&](const LayerRange& held) {
      stage.standby_weights = copies_around(stage.layers, on_device, held);
      return fits_on_hosts(plan);
    });
  stage.standby_weights = copies_around(stage.layers, on_device, all);
}

}  // namespace

void fill_standby(ServePlan& plan) {
  for (Stage& stage : plan.stages) stage.standby_weights.clear();
  for (Stage& stage : plan.stages) fill(plan, stage);
  for (const Stage& stage : plan.stages) {
    const std::vector<DeviceMemory> memory = stage_memory(plan, stage);
    for (std::size_t rank = 0; rank < memory.size(); ++rank)
      plan.predicted.memory_bytes[stage.devices[rank]] = memory[rank];
  }
}

std::optional<std::int64_t> standby_bytes_of(const ServePlan& plan) {
  std::optional<std::int64_t> most;
  for (const Stage& stage : plan.stages)
    if (!stage.standby_weights.empty())
      for (const DeviceMemory& memory : stage_memory(plan, stage))
        most = std::max(most.value_or(0), memory.device.standby);
  return most;
}

}  // namespace motley
