#include "motley/cost/form/form.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
double PathPrice::busiest_s() const { return loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end()); }

PathPrice price_path(const ServeForm& form, const std::vector<PathStage>& path) {
  PathPrice price;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const PathStage& stage = path[i];
    StagePrice sum = form.block(*stage.group) * static_cast<double>(stage.layers) + form.ends(*stage.group, stage.ends);
    if (i + 1 < path.size()) sum = sum + form.hop(*stage.group, *path[i + 1].group);
    price.latency = price.latency + sum.latency;
    price.loads.push_back(sum.load.sum());
    price.busiest_decode_s = std::max(price.busiest_decode_s, sum.load.decode_s);
  }
  if (path.size() > 1) price.latency = price.latency + form.token_return(*path.back().group, *path.front().group);
  return price;
}

double setting(const CostOptions& options, const std::string& key, double otherwise) {
  const auto found = options.settings.find(key);
  return found == options.settings.end() ? otherwise : found->second;
}

std::int64_t kv_tokens_of(const ServePoint& point, std::int64_t requests) {
  const double output_tokens = point.phase == Phase::prefill ? 1 : point.output_tokens;
  const double tokens = std::ceil(point.prompt_tokens + output_tokens);
  const auto blocks = static_cast<std::int64_t>(std::ceil(tokens / static_cast<double>(point.step.block_tokens)));
  return requests * blocks * point.step.block_tokens;
}

}  // namespace motley
