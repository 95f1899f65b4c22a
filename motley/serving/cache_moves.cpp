#include "motley/serving/cache_moves.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "motley/cost/form/hop.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

bool has_layer(const Stage& stage, std::int64_t layer) {
  return layer >= stage.layers.first && layer < stage.layers.end;
}

// Keys and values on a disk stay with the part of the plan that wrote them.
bool on_disk(const Stage& stage) { return stage.offload && stage.offload->kv.disk > 0; }

bool same_heads(const Stage& a, const Stage& b) {
  if (on_disk(a) || on_disk(b)) return false;
  return a.devices.size() == b.devices.size() && a.shares == b.shares && a.kv_type == b.kv_type;
}

const Stage* stage_with(const ServePlan& plan, std::int64_t layer) {
  const auto found = std::ranges::find_if(plan.stages, [&](const Stage& stage) { return has_layer(stage, layer); });
  return found == plan.stages.end() ? nullptr : &*found;
}

}  // namespace

std::vector<CacheMove> cache_moves(const ServePlan& before, const ServePlan& after, const std::set<std::string>& lost) {
  if (before.routes.size() != 1 || after.routes.size() != 1 || before.step.block_tokens != after.step.block_tokens)
    return {};
  const std::vector<std::string> devices = worker_devices(after);
  const auto place = [&](const std::string& device) {
    return static_cast<std::int32_t>(std::ranges::find(devices, device) - devices.begin());
  };
  const auto same_blocks = [&](const Stage& a, const Stage& b, std::int64_t layer) {
    const LayerKind& kind = after.model.arch.kind(layer);
    return slot_blocks(kind, cache_room(a), before.step) == slot_blocks(kind, cache_room(b), after.step);
  };
  std::vector<CacheMove> moves;
  for (const Hop& hop : after.routes[0].path) {
    const Stage& stage = after.stage(hop.stage);
    bool whole = true;
    for (std::int64_t layer = stage.layers.first; layer < stage.layers.end; ++layer) {
      const Stage* old = stage_with(before, layer);
      for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
        const bool is_there = old != nullptr && same_heads(*old, stage) && same_blocks(*old, stage, layer) &&
                              !lost.contains(old->devices[rank]) && std::ranges::count(devices, old->devices[rank]) > 0;
        whole = whole && is_there;
        if (is_there && old->devices[rank] != stage.devices[rank])
          moves.push_back({layer, place(old->devices[rank]), place(stage.devices[rank])});
      }
    }
    if (!whole) moves.clear();
  }
  return moves;
}

double seconds_of(const CacheHandover& handover, const ServePlan& after) {
  const std::vector<std::string> devices = worker_devices(after);
  std::map<std::pair<std::int32_t, std::int32_t>, double> bytes;
  for (const CacheMove& move : handover.moves) {
    const Stage& stage = *stage_with(after, move.layer);
    const std::int64_t of_slot = slot_blocks(after.model.arch.kind(move.layer), cache_room(stage), after.step);
    const std::int64_t blocks = of_slot > 0 ? std::ssize(handover.slots) * of_slot : std::ssize(handover.blocks);
    const auto tokens = static_cast<double>(blocks * after.step.block_tokens);
    bytes[{move.from, move.to}] +=
        tokens * static_cast<double>(kv_bytes_per_token(after.model.arch, move.layer, stage.kv_type)) /
        static_cast<double>(stage.devices.size());
  }
  double seconds = 0;
  for (const auto& [ends, of_pair] : bytes) {
    const auto device = [&](std::int32_t end) {
      return after.cluster.find_device(devices[static_cast<std::size_t>(end)]);
    };
    seconds = std::max(seconds, hop_speed(after.cluster, device(ends.first), device(ends.second)).seconds(of_pair));
  }
  return seconds;
}

}  // namespace motley
