#include "motley/serving/retained_cache.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "motley/workers/launch.hpp"

namespace motley {

void RetainedCache::take(const ServePlan& plan, std::uint64_t epoch, const Router& router) {
  epoch_ = epoch;
  block_tokens_ = plan.step.block_tokens;
  sequences_.clear();
  devices_.clear();
  if (has_states(plan.model.arch)) return;  // they have gone on to the last step's tokens
  const std::vector<SlotWindow> windows = slot_windows(plan);
  const auto is_there = [&](const CachedTokens& cached) {
    return std::ranges::all_of(windows, [&](const SlotWindow& of) {
      return slot_reaches(of.blocks, of.window, block_tokens_, cached.tokens, cached.reached);
    });
  };
  for (std::size_t group = 0; group < router.groups(); ++group)
    for (auto& [id, cached] : router.cached(group))
      if (is_there(cached)) sequences_[id] = {group, cached};
  for (std::size_t route = 0; route < plan.routes.size(); ++route)
    for (const Hop& hop : plan.routes[route].path)
      for (const std::string& device : plan.stage(hop.stage).devices)
        devices_[device] = {router.group_of(route), plan.stage(hop.stage).kv_tokens / block_tokens_,
                            plan.stage(hop.stage).kv_sequences};
}

void RetainedCache::follow(const ServePlan& plan) {
  if (plan.step.block_tokens != block_tokens_) return clear();
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices)
      if (const auto found = devices_.find(device); found != devices_.end()) {
        found->second.blocks = std::min(found->second.blocks, stage.kv_tokens / block_tokens_);
        found->second.slots = std::min(found->second.slots, stage.kv_sequences);
      }
}

void RetainedCache::receive(const std::vector<CacheMove>& moves, const ServePlan& plan) {
  const std::vector<std::string> devices = worker_devices(plan);
  for (const CacheMove& move : moves)
    if (const auto from = devices_.find(devices[static_cast<std::size_t>(move.from)]); from != devices_.end())
      devices_.try_emplace(devices[static_cast<std::size_t>(move.to)], from->second);
  follow(plan);
}

std::vector<std::int32_t> RetainedCache::blocks(const ServePlan& plan) const {
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  for (const Stage& stage : plan.stages) room = std::min(room, stage.kv_tokens / plan.step.block_tokens);
  for (const auto& [device, cache] : devices_) room = std::min(room, cache.blocks);
  std::set<std::int32_t> used;
  for (const auto& [id, sequence] : sequences_)
    std::ranges::copy_if(sequence.cached.blocks, std::inserter(used, used.end()),
                         [&](std::int32_t block) { return block < room; });
  return {used.begin(), used.end()};
}

std::vector<std::int32_t> RetainedCache::slots(const ServePlan& plan) const {
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  for (const Stage& stage : plan.stages)
    if (stage.kv_sequences > 0) room = std::min(room, stage.kv_sequences);
  for (const auto& [device, cache] : devices_)
    if (cache.slots > 0) room = std::min(room, cache.slots);
  std::set<std::int32_t> used;
  for (const auto& [id, sequence] : sequences_)
    if (sequence.cached.slot >= 0 && sequence.cached.slot < room) used.insert(sequence.cached.slot);
  return {used.begin(), used.end()};
}

std::int64_t RetainedCache::tokens() const {
  std::int64_t tokens = 0;
  for (const auto& [id, sequence] : sequences_) tokens += sequence.cached.tokens;
  return tokens;
}

std::optional<CachedTokens> RetainedCache::find(std::uint64_t id, const ServePlan& plan, const Route& route,
                                                const CacheEpochs& epochs) const {
  const auto sequence = sequences_.find(id);
  if (sequence == sequences_.end()) return std::nullopt;
  const auto& [group, cached] = sequence->second;
  const std::int64_t last_block = *std::ranges::max_element(cached.blocks);
  const auto has_it = [&](const std::string& device) {
    const auto found = devices_.find(device);
    return found != devices_.end() && found->second.group == group && last_block < found->second.blocks &&
           (found->second.slots == 0 || cached.slot < found->second.slots);
  };
  CachedTokens there = cached;
  for (std::size_t hop = 0; hop < route.path.size(); ++hop) {
    const Stage& stage = plan.stage(route.path[hop].stage);
    if (epochs.at(stage.id) > epoch_ || !std::ranges::all_of(stage.devices, has_it))
      there.lacking_stages = static_cast<std::int32_t>(hop + 1);
  }
  if (there.lacking_stages == std::ssize(route.path)) return std::nullopt;
  return there;
}

}  // namespace motley
