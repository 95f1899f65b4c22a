#include "motley/planner/serve/standby.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace motley {
namespace {

bool fits(const ServePlan& plan, const Stage& stage) {
  return std::ranges::all_of(stage_memory(plan, stage),
                             [](const DeviceMemory& memory) { return memory.device.total() <= memory.device.limit; });
}

std::vector<StandbyWeights> copies_around(const LayerRange& own, const LayerRange& held) {
  std::vector<StandbyWeights> standby;
  for (const LayerRange& layers : {LayerRange{held.first, own.first}, LayerRange{own.end, held.end}})
    if (layers.size() > 0) standby.push_back({layers});
  return standby;
}

void fill(const ServePlan& plan, Stage& stage) {
  stage.standby_weights.clear();
  if (stage.offload) return;
  LayerRange held = stage.layers;
  const std::array bounds{std::pair(&LayerRange::first, std::int64_t{0}),
                          std::pair(&LayerRange::end, plan.model.arch.layers)};
  std::array<bool, 2> grows{true, true};
  while (grows[0] || grows[1])
    for (std::size_t side = 0; side < bounds.size(); ++side) {
      const auto& [edge, bound] = bounds[side];
      grows[side] = grows[side] && held.*edge != bound;
      if (!grows[side]) continue;
      LayerRange more = held;
      more.*edge += side == 0 ? -1 : 1;
      Stage with = stage;
      with.standby_weights = copies_around(stage.layers, more);
      grows[side] = fits(plan, with);
      if (grows[side]) held = more;
    }
  stage.standby_weights = copies_around(stage.layers, held);
}

}  // namespace

void fill_standby(ServePlan& plan) {
  for (Stage& stage : plan.stages) {
    fill(plan, stage);
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
