#include "motley/server/kept_cache.hpp"

#include <algorithm>

namespace motley {

void KeptCache::take(const ServePlan& plan, std::uint64_t epoch, const Router& router) {
  epoch_ = epoch;
  block_tokens_ = plan.step.block_tokens;
  sequences_.clear();
  devices_.clear();
  for (std::size_t group = 0; group < router.groups(); ++group)
    for (auto& [id, cached] : router.cached(group)) sequences_[id] = {group, cached};
  for (std::size_t route = 0; route < plan.routes.size(); ++route)
    for (const Hop& hop : plan.routes[route].path)
      for (const std::string& device : plan.stage(hop.stage).devices)
        devices_[device] = {router.group_of(route), plan.stage(hop.stage).kv_tokens / block_tokens_};
}

void KeptCache::follow(const ServePlan& plan) {
  if (plan.step.block_tokens != block_tokens_) return clear();
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices)
      if (const auto found = devices_.find(device); found != devices_.end())
        found->second.blocks = std::min(found->second.blocks, stage.kv_tokens / block_tokens_);
}

std::optional<CachedTokens> KeptCache::find(std::uint64_t id, const ServePlan& plan, const Route& route,
                                            const CacheEpochs& epochs) const {
  const auto sequence = sequences_.find(id);
  if (sequence == sequences_.end()) return std::nullopt;
  const auto& [group, cached] = sequence->second;
  const std::int64_t last_block = *std::ranges::max_element(cached.blocks);
  const auto has_it = [&](const std::string& device) {
    const auto found = devices_.find(device);
    return found != devices_.end() && found->second.group == group && last_block < found->second.blocks;
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
