// For tests: plans whose times are round figures, for their profile says how many tokens every stage passes on.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "motley/cost/form/cases_test.hpp"
#include "motley/sim/simulate.hpp"

namespace motley {

constexpr double tick = 1e-9;  // s: but for rounding

struct TimedStage {
  double tokens_per_s = 1;
  LayerRange layers = {};
  StageRole role = StageRole::any;
  std::int64_t kv_tokens = 1 << 20;
};

// A machine and a type of device for every stage ("m0/0", ...), a link from each to each.
inline ServePlan timed_plan(const std::vector<TimedStage>& stages, const std::vector<std::vector<std::size_t>>& routes,
                            double latency_s = 0, double bandwidth_bytes_per_s = 1e15) {
  std::string toml = "format = \"motley.cluster/1\"\n";
  for (std::size_t i = 0; i < stages.size(); ++i)
    toml += fmt::format(
        "[[machine]]\nname = \"m{0}\"\ndevices = [\"d{0}\"]\n[[device_type]]\nname = \"d{0}\"\nvendor = \"cpu\"\n"
        "memory = \"64 GB\"\nmemory_bandwidth = \"1 TB/s\"\nflops = {{ bf16 = \"1 TFLOP/s\" }}\n",
        i);
  toml += fmt::format("[network]\nwithin_site = {{ latency = \"{} s\", bandwidth = \"{} B/s\" }}\n", latency_s,
                      bandwidth_bytes_per_s);
  ServePlan plan;
  plan.cluster = cluster_of(toml);
  std::int64_t layers = 0;
  for (const TimedStage& stage : stages) layers = std::max(layers, stage.layers.end);
  plan.model = llama_of(64, layers > 0 ? layers : 8, 4, 4, 128, 256);
  plan.model.arch.context = 1 << 20;
  plan.workload = workload_of(1, 1);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const LayerRange held = stages[i].layers.size() > 0 ? stages[i].layers : LayerRange{0, plan.model.arch.layers};
    plan.stages.push_back({.id = fmt::format("s{}", i),
                           .role = stages[i].role,
                           .layers = held,
                           .devices = {fmt::format("m{}/0", i)},
                           .shares = {},
                           .embedding = held.first == 0,
                           .head = held.end == plan.model.arch.layers,
                           .kv_tokens = stages[i].kv_tokens});
    plan.profile.layer_rate.push_back(
        {fmt::format("d{}", i), 1, std::vector<double>(static_cast<std::size_t>(held.size()), stages[i].tokens_per_s)});
  }
  for (const auto& path : routes) {
    Route& route = plan.routes.emplace_back();
    route.id = fmt::format("r{}", plan.routes.size() - 1);
    for (const std::size_t stage : path) route.path.push_back({plan.stages[stage].id, plan.stages[stage].layers});
  }
  return plan;
}

// One stage that serves one request after the other, a second for `tokens_per_s` tokens.
inline ServePlan single_queue(double tokens_per_s, std::int64_t max_tokens) {
  ServePlan plan = timed_plan({{.tokens_per_s = tokens_per_s}}, {{0}});
  plan.step = {.max_tokens = max_tokens, .max_sequences = 1, .block_tokens = 16};
  return plan;
}

// As many stages of these rates, two layers each, one after the other.
inline ServePlan chain_plan(const std::vector<double>& rates, double latency_s = 0,
                            double bandwidth_bytes_per_s = 1e15) {
  std::vector<TimedStage> stages;
  std::vector<std::size_t> path;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto first = static_cast<std::int64_t>(2 * i);
    stages.push_back({.tokens_per_s = rates[i], .layers = {first, first + 2}});
    path.push_back(i);
  }
  return timed_plan(stages, {path}, latency_s, bandwidth_bytes_per_s);
}

inline std::vector<TraceRequest> regular(std::int64_t count, double period_s, std::int64_t prompt,
                                         std::int64_t output) {
  std::vector<TraceRequest> requests;
  for (std::int64_t i = 0; i < count; ++i)
    requests.push_back({static_cast<double>(i) * period_s, prompt, output, "chat"});
  return requests;
}

inline constexpr std::int64_t no_limit = std::int64_t{1} << 40;

}  // namespace motley
