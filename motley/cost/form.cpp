#include "motley/cost/form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/cost/forms.hpp"

namespace motley {
namespace {

struct ServeFormEntry {
  std::string name;
  std::vector<std::string> settings;
  std::unique_ptr<ServeForm> (*make)(const CostOptions&, const Cluster&, const Architecture&, const ServePoint&);
};

const std::vector<ServeFormEntry>& serve_form_entries() {
  static const std::vector<ServeFormEntry> table = {
      {"motley",
       {"motley.batch", "motley.micro_batches", "motley.layer_overhead_s", "motley.step_overhead_s"},
       make_motley_form},
      {"hexgen", {"hexgen.batch"}, make_hexgen_form}};
  return table;
}

const ServeFormEntry& serve_form_entry(const std::string& form) {
  for (const auto& entry : serve_form_entries())
    if (entry.name == form) return entry;
  throw input_error(fmt::format("\"{}\" is no cost form for serving plans", form),
                    fmt::format("known: {}", fmt::join(serve_forms(), ", ")));
}

void check_settings(const CostOptions& options) {
  const auto& known = serve_form_entry(options.form).settings;
  for (const auto& [key, value] : options.settings) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw input_error(fmt::format("the cost form \"{}\" has no setting \"{}\"", options.form, key),
                        fmt::format("its settings: {}", fmt::join(known, ", ")));
    const bool count = !key.ends_with("_s");
    if (!std::isfinite(value) || value < 0 || (count && (value < 1 || value != std::floor(value) || value > 1e9)))
      throw input_error(
          fmt::format("{} = {} is not a {}", key, value, count ? "whole number from 1" : "time in seconds"),
          fmt::format("such as --set {}={}", key, count ? "4" : "0.0001"));
  }
}

}  // namespace

const std::vector<std::string>& serve_forms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& entry : serve_form_entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

std::unique_ptr<ServeForm> make_form(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                                     const ServePoint& point) {
  check_settings(options);
  return serve_form_entry(options.form).make(options, cluster, arch, point);
}

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
