#include "motley/planner/serve/grouping/write_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "motley/base/rounding.hpp"
#include "motley/cluster/host_reserve.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/pipeline/offloading.hpp"

namespace motley {
namespace {

void add_pipeline(const ServeProblem& problem, const Pipeline& pipeline, double weight, ServePlan& plan) {
  const Candidate& candidate = pipeline.best();
  Route route{.id = fmt::format("r{}", plan.routes.size()), .path = {}, .weight = weight, .batch = candidate.batch};
  for (Stage& stage : pipeline_stages(problem, pipeline, route.id)) {
    route.path.push_back({stage.id, stage.layers});
    plan.stages.push_back(std::move(stage));
  }
  plan.routes.push_back(std::move(route));
}

bool is_excluded(const ServeProblem& problem, const std::string& device) {
  const auto& excluded = problem.options.excluded;
  return std::find(excluded.begin(), excluded.end(), device) != excluded.end();
}

constexpr const char* excluded_reason = "excluded by --without";

}  // namespace

std::vector<Stage> pipeline_stages(const ServeProblem& problem, const Pipeline& pipeline, const std::string& prefix) {
  const Candidate& candidate = pipeline.best();
  const auto devices = pipeline.stage_devices();
  std::vector<Stage> stages;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const ChainStage& chosen = candidate.chain.stages[i];
    Stage stage;
    stage.id = fmt::format("{}/s{}", prefix, i);
    stage.layers = {first, first + chosen.units};
    first = stage.layers.end;
    for (const int device : devices[i]) stage.devices.push_back(problem.cluster.devices[device].name);
    stage.shares = candidate.table->kinds()[chosen.option].shares;
    stage.expert_shares = candidate.table->kinds()[chosen.option].expert_shares;
    stage.embedding = i == 0;
    stage.head = i + 1 == devices.size();
    stage.weight_type = problem.weights_on(devices[i]);
    stage.kv_type = problem.kv_type;
    if (const auto& offload = candidate.offload[i]) stage.offload = offload_of(*offload);
    stages.push_back(std::move(stage));
  }
  return stages;
}

void list_unused(const ServeProblem& problem, const std::string& reason, ServePlan& plan) {
  std::set<std::string> used;
  for (const auto& stage : plan.stages) used.insert(stage.devices.begin(), stage.devices.end());
  for (const auto& device : problem.cluster.devices)
    if (!used.contains(device.name))
      plan.unused.push_back({device.name, is_excluded(problem, device.name) ? excluded_reason : reason});
}

void set_crossing_types(const ServeProblem& problem, ServePlan& plan) {
  if (!problem.options.crossing_type) return;
  const auto devices_of = [&](const Hop& hop) {
    std::vector<int> devices;
    for (const auto& name : plan.stage(hop.stage).devices) devices.push_back(problem.cluster.find_device(name));
    return devices;
  };
  for (auto& route : plan.routes) {
    const std::optional<std::size_t> hand_over = hand_over_hop(plan, route);
    for (std::size_t hop = 0; hop + 1 < route.path.size(); ++hop)
      if (hop + 1 != hand_over)
        route.path[hop].activation_type = problem.sent_in(devices_of(route.path[hop]), devices_of(route.path[hop + 1]));
  }
}

void fill_kv(ServePlan& plan, const Route& route, std::int64_t most_tokens) {
  std::vector<Stage> stages;
  for (const auto& hop : route.path) stages.push_back(plan.stage(hop.stage));
  const std::int64_t slots = kv_slots(plan, stages, most_kv_slots(plan, route));
  std::int64_t tokens = most_tokens;
  for (Stage& stage : stages) {
    stage.kv_sequences = slots_of(plan, stage, slots);
    tokens = std::min(tokens, kv_room_tokens(plan, stage, most_tokens));
  }
  for (auto& stage : plan.stages)
    for (const auto& hop : route.path)
      if (hop.stage == stage.id) {
        stage.kv_tokens = tokens;
        stage.kv_sequences = slots_of(plan, stage, slots);
      }
}

void predict(ServePlan& plan, const CostOptions& options) {
  const ServeCost cost = price_serve(plan, options);
  plan.predicted = {};
  plan.predicted.tokens_per_s = cost.tokens_per_s;
  plan.predicted.requests_per_s = cost.requests_per_s;
  plan.predicted.latency_s = cost.latency_s;
  plan.predicted.bottleneck_s = cost.bottleneck_s;
  for (std::size_t i = 0; i < plan.routes.size(); ++i) {
    Route& route = plan.routes[i];
    route.batch = cost.routes[i].batch;
    // Where weights stream by, the scheduler takes this number from the plan.
    const auto offloads = [&](const Hop& hop) { return plan.stage(hop.stage).offload.has_value(); };
    if (std::ranges::any_of(route.path, offloads)) route.micro_batches = cost.routes[i].micro_batches;
  }
  for (const auto& stage : plan.stages) {
    const auto memory = stage_memory(plan, stage);
    for (std::size_t i = 0; i < memory.size(); ++i) plan.predicted.memory_bytes[stage.devices[i]] = memory[i];
  }
}

namespace {

// Why one more device like this one would not help, told of the pipeline that it could join best.
std::string reason_for(Groups& groups, const std::vector<Pipeline>& pipelines, int device) {
  const ServeProblem& problem = groups.problem();
  const Cluster& cluster = problem.cluster;
  constexpr std::size_t tried = 4;  // near ones first; each may cost a search
  std::vector<const Pipeline*> near;
  for (const auto& pipeline : pipelines) near.push_back(&pipeline);
  std::stable_sort(near.begin(), near.end(), [&](const Pipeline* a, const Pipeline* b) {
    const auto distance = [&](const Pipeline* pipeline) {
      const int other = pipeline->devices.front();
      return other == device ? 0.0 : cluster.link(other, device).latency_s + cluster.link(device, other).latency_s;
    };
    return distance(a) < distance(b);
  });
  if (near.size() > tried) near.resize(tried);
  std::string reason;
  for (const Pipeline* pipeline : near) {
    std::vector<int> with = pipeline->used_devices();
    with.push_back(device);
    const Pipeline joined = groups.best(with);
    if (!joined.found()) continue;
    const std::size_t used = joined.used_devices().size();
    if (used < with.size()) {
      const auto idle = explain_idle(problem, joined.best());
      if (!idle.empty()) return idle.front().reason;
    }
    const auto rate = [&](const Pipeline& p) {
      return p.best().requests_per_s * problem.workload.mean_output_tokens();
    };
    reason = fmt::format("{:.4g} tokens/s with it in a pipeline of {} devices, {:.4g} without", rate(joined),
                         with.size(), rate(*pipeline));
  }
  return reason.empty() ? "no better pipeline uses it" : reason;
}

}  // namespace

void list_unused(Groups& groups, const std::vector<Pipeline>& pipelines, ServePlan& plan) {
  const Cluster& cluster = groups.problem().cluster;
  std::set<int> used;
  for (const auto& pipeline : pipelines)
    for (const int device : pipeline.used_devices()) used.insert(device);
  std::map<std::pair<std::string, int>, std::string> reasons;  // by site and type: alike enough to tell once
  for (const int device : all_devices(cluster)) {
    const std::string& name = cluster.devices[device].name;
    if (used.contains(device)) continue;
    if (is_excluded(groups.problem(), name)) {
      plan.unused.push_back({name, excluded_reason});
      continue;
    }
    const auto kind = std::pair(cluster.machines[cluster.devices[device].machine].site, cluster.devices[device].type);
    auto found = reasons.find(kind);
    if (found == reasons.end()) found = reasons.emplace(kind, reason_for(groups, pipelines, device)).first;
    plan.unused.push_back({name, found->second});
  }
}

namespace {

std::int64_t free_bytes(const DeviceMemory& memory) { return memory.device.limit - memory.device.total(); }

// Devices of the stage's machine, each of which has an equal part of its host memory and disk.
std::int64_t sharing_tiers(const ServePlan& plan, const Stage& stage) {
  const auto device = static_cast<std::size_t>(plan.cluster.find_device(stage.devices.at(0)));
  return std::ssize(plan.cluster.machines[static_cast<std::size_t>(plan.cluster.devices[device].machine)].devices);
}

}  // namespace

std::int64_t kv_room_tokens(const ServePlan& plan, Stage stage, std::int64_t most_tokens) {
  stage.kv_tokens = 0;
  const std::vector<DeviceMemory> empty = stage_memory(plan, stage);
  if (!stage.offload) {
    std::int64_t tokens = most_tokens;
    for (std::size_t rank = 0; rank < empty.size(); ++rank)
      tokens = std::min(tokens, tokens_in(plan, stage, rank, free_bytes(empty[rank]), most_tokens));
    return tokens;
  }
  stage.kv_tokens = plan.step.block_tokens;
  const std::vector<DeviceMemory> one = stage_memory(plan, stage);
  std::int64_t blocks = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < one.size(); ++i)
    for (const auto& [tier, of] : memory_tiers) {
      const TierMemory &without = empty[i].*of, &with = one[i].*of;
      if (with.kv == 0) continue;
      const std::int64_t reserve = of == &DeviceMemory::host ? host_reserve_bytes(without.limit) : 0;
      const std::int64_t limit =
          of == &DeviceMemory::device ? without.limit : (without.limit - reserve) / sharing_tiers(plan, stage);
      blocks = std::min(blocks, (limit - without.total()) / with.kv);
    }
  return std::min(most_tokens, std::max<std::int64_t>(blocks, 0) * plan.step.block_tokens);
}

std::int64_t kv_slots(const ServePlan& plan, const std::vector<Stage>& stages, std::int64_t most) {
  if (!has_slots(plan.model.arch)) return 0;
  const ServePoint point{plan.workload.mean_prompt_tokens(), plan.workload.mean_output_tokens(), 1, plan.step};
  const auto all_fit = [&](std::int64_t sequences) {
    return std::ranges::all_of(stages, [&](Stage stage) {
      stage.kv_tokens = kv_tokens_of(point, sequences);
      stage.kv_sequences = slots_of(plan, stage, sequences);
      return std::ranges::all_of(stage_memory(plan, stage),
                                 [](const DeviceMemory& memory) { return free_bytes(memory) >= 0; });
    });
  };
  std::int64_t fits = 1, too_many = most + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = (fits + too_many) / 2;
    (all_fit(middle) ? fits : too_many) = middle;
  }
  return fits;
}

std::int64_t slots_of(const ServePlan& plan, const Stage& stage, std::int64_t slots) {
  return stage.offload && !has_states(plan.model.arch) ? 0 : slots;
}

std::int64_t most_kv_slots(const ServePlan& plan, const Route& route) {
  const std::int64_t micro_batches = route.path.size() == 1 ? 1 : std::ssize(route.path) + 1;
  std::int64_t in_step = plan.step.max_sequences;
  for (const Hop& hop : route.path)
    in_step = std::max(in_step, plan.step.max_sequences * plan.stage(hop.stage).batches());
  return std::max(route.batch, in_step * micro_batches);
}

namespace {

// Of the workload. The assumed one and traces do not tell it: any that the model can take.
std::int64_t longest_request_tokens(const ServePlan& plan) {
  const auto longest = [](const Length& length) { return std::max(length.mean, length.p99); };
  double tokens = 0;
  for (const RequestClass& request : plan.workload.classes) {
    if (!request.prompt_tokens.trace.empty() || !request.output_tokens.trace.empty()) return plan.model.arch.context;
    tokens = std::max(tokens, longest(request.prompt_tokens) + longest(request.output_tokens));
  }
  if (plan.workload == default_workload() || !plan.workload.arrival.file.empty()) return plan.model.arch.context;
  return std::min(plan.model.arch.context, static_cast<std::int64_t>(std::ceil(tokens)));
}

// A device's memory is for nothing else, so keys and values may have what is left of it. A host's is not: for the least
// latency, what the requests in flight need.
std::int64_t most_kv_tokens(const ServeProblem& problem, const ServePlan& plan, const Route& route) {
  const auto is_on_host = [&](const Hop& hop) {
    const auto& offload = plan.stage(hop.stage).offload;
    return offload && offload->kv.host > 0;
  };
  const std::int64_t most = most_kv_tokens(plan, problem.options.max_batch);
  if (problem.options.objective != Objective::latency || std::ranges::none_of(route.path, is_on_host)) return most;
  const std::int64_t block = plan.step.block_tokens;
  const std::int64_t each = round_up(longest_request_tokens(plan), block);
  return std::min(most, std::max<std::int64_t>(1, route.batch) * each);
}

}  // namespace

std::int64_t most_kv_tokens(const ServePlan& plan, std::int64_t max_batch) {
  const std::int64_t blocks_each = ceil_div(std::max<std::int64_t>(plan.model.arch.context, 1), plan.step.block_tokens);
  return max_batch * blocks_each * plan.step.block_tokens;
}

ServePlan write_pipelines(const ServeProblem& problem, const std::vector<Pipeline>& pipelines, const StepLimits& step) {
  ServePlan plan;
  plan.model = problem.model;
  plan.cluster = problem.cluster;
  plan.workload = problem.workload;
  plan.profile = problem.options.profile;
  plan.step = step;
  double most = 0;
  for (const auto& pipeline : pipelines) most = std::max(most, pipeline.best().requests_per_s);
  for (const auto& pipeline : pipelines) add_pipeline(problem, pipeline, pipeline.best().requests_per_s / most, plan);
  set_crossing_types(problem, plan);
  for (const auto& route : plan.routes) fill_kv(plan, route, most_kv_tokens(problem, plan, route));
  predict(plan, problem.options.cost);
  return plan;
}

}  // namespace motley
