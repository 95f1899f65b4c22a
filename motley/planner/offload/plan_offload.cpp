#include "motley/planner/offload/plan_offload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/cost/offload/flexgen_plan.hpp"
#include "motley/model/type_quality.hpp"
#include "motley/planner/offload/flexgen_search.hpp"
#include "motley/planner/offload/shape_search.hpp"

namespace motley {
namespace {

// The first device of every type on every kind of machine: others are like one of these.
std::vector<int> candidates(const Cluster& cluster, const std::string& wanted) {
  if (!wanted.empty()) return {cluster.find_device(wanted)};
  std::vector<int> found;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const auto kind = [&](int device) {
      const Device& d = cluster.devices[static_cast<std::size_t>(device)];
      return std::pair(d.type, cluster.machines[static_cast<std::size_t>(d.machine)].description);
    };
    const bool like_another =
        std::any_of(found.begin(), found.end(), [&](int other) { return kind(other) == kind(static_cast<int>(i)); });
    if (!like_another) found.push_back(static_cast<int>(i));
  }
  return found;
}

const std::string& machine_of(const Cluster& cluster, int device) {
  const int machine = cluster.devices[static_cast<std::size_t>(device)].machine;
  return cluster.machines[static_cast<std::size_t>(machine)].name;
}

OffloadPlan empty_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                       const OffloadOptions& options, int device) {
  OffloadPlan plan;
  plan.model = model;
  plan.cluster = cluster;
  plan.workload = workload;
  plan.device = cluster.devices[static_cast<std::size_t>(device)].name;
  plan.block_tokens = options.block_tokens;
  for (const Device& other : cluster.devices)
    if (other.name != plan.device) plan.unused.push_back({other.name, "an offload plan uses one device"});
  plan.search.planner = "offload";
  plan.search.objective = options.least_tokens_per_s ? "latency" : "throughput";
  plan.search.cost = options.cost.form;
  plan.search.seed = static_cast<std::int64_t>(options.seed);
  return plan;
}

// ---- the form flexgen ----

TierMemory peak(double bytes, double limit) { return {.weights = std::llround(bytes), .limit = std::llround(limit)}; }

std::optional<OffloadPlan> flexgen_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                                        int device, const OffloadOptions& options) {
  OffloadPlan plan = empty_plan(cluster, model, workload, options, device);
  plan.weight_type = options.weight_type.value_or(model.arch.checkpoint_type);
  plan.kv_type = options.kv_type.value_or(DType::fp16);
  const FlexgenCase input = flexgen_case(plan, options.cost);
  const auto found = search_flexgen(input);
  if (!found) return {};
  plan.batch = static_cast<std::int64_t>(found->policy.batch);
  plan.batches = static_cast<std::int64_t>(found->policy.batches);
  plan.kv_tokens = std::llround(found->policy.batch * found->policy.batches * (input.prompt + input.output));
  plan.prompt_chunk = std::llround(found->policy.batch * input.prompt);
  plan.weights = found->policy.weights;
  plan.kv = found->policy.kv;
  plan.activations = found->policy.activations;
  plan.cpu_attention = plan.kv.device < 1;
  const FlexgenTimes times = flexgen_times(input, found->policy);
  const FlexgenMemory memory = flexgen_memory(input, found->policy);
  plan.predicted.tokens_per_s = times.tokens_per_s;
  plan.predicted.latency_s = times.total_s;
  plan.predicted.memory_bytes[plan.device] = {
      .device = peak(std::max(memory.device_prefill, memory.device_decode), input.device_bytes),
      .host = peak(std::max(memory.host_prefill, memory.host_decode), input.host_bytes),
      .disk = peak(memory.disk, input.disk_bytes)};
  plan.search.status = SearchStatus::optimal;
  plan.search.bound = times.tokens_per_s;
  plan.search.gap = 0;
  plan.search.evaluated = found->evaluated;
  return plan;
}

// ---- the form motley ----

struct Types {
  DType weights, kv;
};

// Those of which the search takes the best.
std::vector<Types> types_to_try(const Model& model, const OffloadOptions& options) {
  const DType own = model.arch.checkpoint_type;
  const std::vector<DType> kv_choices = kv_type_choices(model.arch);
  if (!options.most_kl) return {{options.weight_type.value_or(own), options.kv_type.value_or(kv_choices.front())}};
  if (own == DType::file || is_quantised(own))
    throw input_error(
        fmt::format("--max-kl chooses a type for weights that are not quantised yet, and {} has them in {}", model.name,
                    own == DType::file ? "the types of its file" : name_of(own)),
        "leave out --max-kl, or give the unquantised model");
  if (options.kv_type && kv_kl(*options.kv_type).value_or(0) > *options.most_kl)
    throw input_error(fmt::format("--max-kl {:g}: keys and values in {} alone diverge by {:g}", *options.most_kl,
                                  name_of(*options.kv_type), *kv_kl(*options.kv_type)),
                      "allow more, or leave out --kv-type");
  std::vector<Types> types;
  for (const DType weights : weight_type_choices(model.arch))
    for (const DType kv : options.kv_type ? std::vector{*options.kv_type} : kv_choices)
      if (weight_kl(weights).value_or(0) + kv_kl(kv).value_or(0) <= *options.most_kl) types.push_back({weights, kv});
  return types;
}

std::string shortage_text(const Cluster& cluster, int device, const Model& model) {
  const MemoryTiers tiers = tiers_of(cluster, device);
  return fmt::format("{} has {} for {}, with {} of host memory and {} of disk behind it",
                     cluster.devices[static_cast<std::size_t>(device)].name,
                     human_bytes(static_cast<double>(cluster.type_of(device).memory_bytes)), model.name,
                     human_bytes(static_cast<double>(tiers.host_bytes)),
                     human_bytes(tiers.disk ? static_cast<double>(tiers.disk->capacity_bytes) : 0));
}

}  // namespace

OffloadOutcome plan_offload(const Cluster& cluster, const Model& model, const Workload& workload,
                            const OffloadOptions& options) {
  const Instant start = Clock::now();
  const bool published = options.cost.form == "flexgen";
  if (!published && options.cost.form != "motley")
    throw input_error(fmt::format("the form \"{}\" does not price offloading", options.cost.form),
                      "use --cost motley or --cost flexgen");
  if (published && options.weights_only)
    throw input_error("--weights-only needs the cost form motley", "leave out --cost flexgen");
  if (!published && options.kv_type) check_kv_type(model.arch, *options.kv_type);
  std::optional<OffloadPlan> best;
  bool lacks_tiers = true;
  for (const int device : candidates(cluster, options.device)) {
    const MemoryTiers tiers = tiers_of(cluster, device);
    lacks_tiers = lacks_tiers && tiers.host_bytes == 0 && !tiers.disk;
    if (published) {
      auto plan = flexgen_plan(cluster, model, workload, device, options);
      if (plan && (!best || plan->predicted.tokens_per_s > best->predicted.tokens_per_s)) best = std::move(plan);
      continue;
    }
    ShapeSearch search(cluster, model, workload, device, options,
                       start + duration_of(std::clamp(options.deadline_s, 0.0, 1e6)));
    OffloadPlan plan = empty_plan(cluster, model, workload, options, device);
    for (const Types& types : types_to_try(model, options)) search.run(types.weights, types.kv);
    if (search.fill(plan) && (!best || search.better(plan.predicted, best->predicted))) best = std::move(plan);
  }
  if (!best) {
    const int device = candidates(cluster, options.device).front();
    if (lacks_tiers)
      return {.plan = {},
              .reason = fmt::format("{}, and machine \"{}\" has neither `host_memory` nor `disk` to offload to",
                                    shortage_text(cluster, device, model), machine_of(cluster, device)),
              .hint =
                  "describe them: host_memory = \"64 GiB\", disk = { capacity = \"1 TB\", read = \"2 GB/s\", write = "
                  "\"1 GB/s\" }"};
    return {.plan = {},
            .reason = options.most_latency_s || options.least_tokens_per_s
                          ? fmt::format("no placement keeps the limit: {}", shortage_text(cluster, device, model))
                          : shortage_text(cluster, device, model),
            .hint =
                "add host memory or disk, use a smaller --weight-type, or a device that holds the embedding, the "
                "head and two layers"};
  }
  best->search.elapsed_s = seconds_since(start);
  return {.plan = std::move(best), .reason = {}, .hint = {}};
}

}  // namespace motley
