#include "motley/cost/form/form.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "motley/base/error.hpp"

namespace motley {
namespace {

[[noreturn]] void refuse_streamed() {
  throw input_error("the plan has a stage that offloads, which this cost form does not price", "use --cost motley");
}

}  // namespace

CostOptions with_gamma(CostOptions options, const Profile& profile, const std::string& model) {
  options.gamma.clear();
  std::ranges::copy_if(profile.gamma, std::back_inserter(options.gamma),
                       [&](const RoutingGamma& gamma) { return gamma.model == model; });
  return options;
}

LayerCounts layer_counts(const Architecture& arch, const LayerRange& layers) {
  const std::vector<std::int64_t> counts = kind_counts(arch, layers);
  return {counts.begin(), counts.end()};
}

double sum_of_layers(const LayerCounts& layers) { return std::accumulate(layers.begin(), layers.end(), 0.0); }

LayerCounts mean_layer_counts(const Architecture& arch, std::int64_t layers) {
  LayerCounts counts = layer_counts(arch, {0, arch.layers});
  for (double& count : counts) count = count * static_cast<double>(layers) / static_cast<double>(arch.layers);
  return counts;
}

std::optional<std::int64_t> ServeForm::most_layers(const TensorGroup&, StageEnds, std::int64_t) const { return {}; }

StagePrice ServeForm::streamed(const TensorGroup&, StageEnds, const StreamedStage&) const { refuse_streamed(); }

Term ServeForm::explain_streamed(const TensorGroup&, StageEnds, const StreamedStage&, std::string) const {
  refuse_streamed();
}

StagePrice price_layers(const ServeForm& form, const TensorGroup& group, const LayerCounts& layers) {
  StagePrice price;
  for (std::size_t kind = 0; kind < layers.size(); ++kind)
    if (layers[kind] > 0) price = price + form.block(group, kind) * layers[kind];
  return price;
}

StagePrice price_stage(const ServeForm& form, const PathStage& stage) {
  if (stage.streamed != nullptr) return form.streamed(*stage.group, stage.ends, *stage.streamed);
  return price_layers(form, *stage.group, stage.layers) + form.ends(*stage.group, stage.ends);
}

double PathPrice::busiest_s() const { return loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end()); }

PathPrice price_path(const ServeForm& form, const std::vector<PathStage>& path) {
  PathPrice price;
  double busiest_chunk_s = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const PathStage& stage = path[i];
    StagePrice sum = price_stage(form, stage);
    if (i + 1 < path.size()) sum = sum + form.hop(*stage.group, *path[i + 1].group);
    price.latency = price.latency + sum.latency;
    price.loads.push_back(sum.load_s);
    busiest_chunk_s = std::max(busiest_chunk_s, sum.chunk_s);
  }
  if (!path.empty()) price.latency = price.latency + form.token_return(*path.back().group, *path.front().group);
  price.more_chunks_s = std::max(0.0, form.chunks() - 1) * busiest_chunk_s;
  return price;
}

double setting(const CostOptions& options, const std::string& key, double otherwise) {
  const auto found = options.settings.find(key);
  return found == options.settings.end() ? otherwise : found->second;
}

KvTokens kv_tokens_each(const ServePoint& point) {
  const double output_tokens = point.phase == Phase::prefill ? 1 : point.output_tokens;
  const auto block = static_cast<double>(point.step.block_tokens);
  const double last = block * std::ceil(std::ceil(point.prompt_tokens + output_tokens) / block);
  return {last, std::min(last, point.prompt_tokens + (output_tokens + 1) / 2 + (block - 1) / 2)};
}

std::int64_t kv_tokens_of(const ServePoint& point, std::int64_t requests) {
  const KvTokens each = kv_tokens_each(point);
  const auto block = static_cast<double>(point.step.block_tokens);
  const auto count = static_cast<double>(requests);
  const double tokens = count * each.mean + std::sqrt(count) * (each.last - each.mean);
  return static_cast<std::int64_t>(block * std::ceil(tokens / block - 1e-9));
}

CacheRoom room_of(const ServePoint& point, std::int64_t requests) { return {kv_tokens_of(point, requests), requests}; }

double requests_in(const ServePoint& point, double kv_tokens) {
  const KvTokens each = kv_tokens_each(point);
  const double more = each.last - each.mean;
  const double root = (std::sqrt(more * more + 4 * each.mean * std::max(0.0, kv_tokens)) - more) / (2 * each.mean);
  return root * root;
}

}  // namespace motley
