#include "motley/planner/serve/serve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "motley/base/units.hpp"
#include "motley/planner/serve/search.hpp"

namespace motley {
namespace {

std::vector<int> all_devices(const Cluster& cluster) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

Shard whole_shard(const Architecture& arch) { return make_shards(arch, 1).front(); }

// What must be stored at least: all weights once, and the KV cache of one request.
struct Need {
  double weights = 0;
  double kv = 0;
  double total() const { return weights + kv; }
};

Need least_need(const ServeProblem& problem) {
  const Architecture& arch = problem.model.arch;
  const Shard whole = whole_shard(arch);
  const StageShape all{.layers = arch.layers, .embedding = true, .head = true};
  const ServePoint point = problem.point(1);
  return {static_cast<double>(weight_bytes(arch, all, whole, problem.weight_type)),
          static_cast<double>(kv_cache_bytes(arch, arch.layers, whole, problem.kv_type, kv_tokens_of(point, 1),
                                             point.step.block_tokens))};
}

// What devices have left beside their reserve and the buffers of a stage that holds the smallest shard.
double usable_bytes(const ServeProblem& problem, int device) {
  const DeviceType& type = problem.cluster.type_of(device);
  return std::max(0.0, static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0)));
}

double usable_bytes(const ServeProblem& problem) {
  double sum = 0;
  for (const int device : all_devices(problem.cluster)) sum += usable_bytes(problem, device);
  return sum;
}

std::string devices_text(const ServeProblem& problem) {
  std::map<std::string, int> counts;
  for (const int device : all_devices(problem.cluster)) ++counts[problem.cluster.type_of(device).name];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(fmt::format("{} x {}", count, name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

void say_why(const ServeProblem& problem, ServeOutcome& outcome) {
  const Need need = least_need(problem);
  const double usable = usable_bytes(problem);
  const Architecture& arch = problem.model.arch;
  const double tokens = std::ceil(problem.workload.mean_prompt_tokens() + problem.workload.mean_output_tokens());
  const std::string holds =
      fmt::format("{} of weights at {} and {} of keys and values for one request of {:g} tokens",
                  human_bytes(need.weights), name_of(problem.weight_type), human_bytes(need.kv), tokens);
  const std::string has =
      fmt::format("{} usable on {} (memory less reserve)", human_bytes(usable), devices_text(problem));
  double missing = need.total() - usable;
  if (missing > 0) {
    outcome.reason = fmt::format("needs {} more: {}, {}", human_bytes(missing), holds, has);
  } else {
    const std::int64_t placed = most_layers_placed(problem, all_devices(problem.cluster));
    const bool all = problem.options.use_devices == UseDevices::all;
    missing = need.total() / static_cast<double>(arch.layers) * static_cast<double>(arch.layers - placed);
    if (placed >= arch.layers && all) {
      outcome.reason = "no layout uses every device";
      outcome.hint = "let devices stay idle";
      return;
    }
    outcome.reason = fmt::format(
        "only {} of {} layers can be placed: {}, {}, but whole layers, buffers and the embedding must fit on each",
        placed, arch.layers, holds, has);
  }
  const auto largest = *std::max_element(
      problem.cluster.devices.begin(), problem.cluster.devices.end(), [&](const Device& a, const Device& b) {
        return problem.cluster.types[a.type].memory_bytes < problem.cluster.types[b.type].memory_bytes;
      });
  const DeviceType& type = problem.cluster.types[largest.type];
  const double each = static_cast<double>(type.memory_bytes - type.reserve_bytes.value_or(0));
  outcome.hint = fmt::format("add about {} of device memory, such as {:g} x {}", human_bytes(missing),
                             std::max(1.0, std::ceil(missing / std::max(each, 1.0))), type.name);
  if (problem.weight_type == DType::fp32 && need.total() / 2 <= usable)
    outcome.hint = fmt::format("weights in bf16 ({}) would fit; or {}", human_bytes(need.weights / 2), outcome.hint);
}

// ---- writing the plan ----

// The largest KV room, in whole blocks, that fits beside the stage's other bytes on each of its devices.
std::int64_t kv_room_tokens(const ServePlan& plan, Stage stage) {
  stage.kv_tokens = 0;
  const std::vector<DeviceMemory> empty = stage_memory(plan, stage);
  stage.kv_tokens = plan.step.block_tokens;
  const std::vector<DeviceMemory> one = stage_memory(plan, stage);
  std::int64_t blocks = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < one.size(); ++i)
    blocks = std::min(blocks, (empty[i].limit - empty[i].total()) / one[i].kv);
  return std::max<std::int64_t>(blocks, 0) * plan.step.block_tokens;
}

// One block table serves all stages of a route, so the tightest stage decides for all; more than all requests in flight
// at full context can never be used.
void fill_kv(ServePlan& plan, const Route& route, std::int64_t max_batch) {
  const std::int64_t blocks_each =
      (std::max<std::int64_t>(plan.model.arch.context, 1) + plan.step.block_tokens - 1) / plan.step.block_tokens;
  std::int64_t tokens = max_batch * blocks_each * plan.step.block_tokens;
  for (const auto& hop : route.path) tokens = std::min(tokens, kv_room_tokens(plan, plan.stage(hop.stage)));
  for (auto& stage : plan.stages)
    for (const auto& hop : route.path)
      if (hop.stage == stage.id) stage.kv_tokens = tokens;
}

void add_pipeline(const ServeProblem& problem, const Candidate& candidate, const std::vector<int>& from,
                  const std::vector<int>& to, ServePlan& plan) {
  const int index = static_cast<int>(plan.routes.size());
  Route route{.id = fmt::format("r{}", index), .path = {}, .weight = 1, .batch = candidate.batch};
  std::int64_t first = 0;
  const auto devices = candidate.table->devices_of(candidate.chain.stages);
  for (std::size_t i = 0; i < candidate.chain.stages.size(); ++i) {
    Stage stage;
    stage.id = fmt::format("r{}/s{}", index, i);
    stage.layers = {first, first + candidate.chain.stages[i].units};
    first = stage.layers.last;
    for (const int device : devices[i]) {
      const auto position = std::find(from.begin(), from.end(), device) - from.begin();
      stage.devices.push_back(problem.cluster.devices[to[position]].name);
    }
    stage.shares = candidate.table->kinds()[candidate.chain.stages[i].option].shares;
    stage.embedding = i == 0;
    stage.head = i + 1 == candidate.chain.stages.size();
    stage.weight_type = problem.weight_type;
    stage.kv_type = problem.kv_type;
    route.path.push_back({stage.id, stage.layers});
    plan.stages.push_back(std::move(stage));
  }
  plan.routes.push_back(std::move(route));
}

void list_unused(const ServeProblem& problem, const Candidate& candidate, const std::vector<std::vector<int>>& parts,
                 ServePlan& plan) {
  std::map<int, std::string> reasons;
  for (const auto& idle : explain_idle(problem, candidate))
    for (const int device : idle.devices) {
      const auto position = std::find(parts[0].begin(), parts[0].end(), device) - parts[0].begin();
      for (const auto& part : parts) reasons[part[position]] = idle.reason;
    }
  std::vector<bool> dealt(problem.cluster.devices.size(), false);
  for (const auto& part : parts)
    for (const int device : part) dealt[device] = true;
  for (const int device : all_devices(problem.cluster)) {
    if (!dealt[device]) reasons[device] = fmt::format("left over where {} equal pipelines are dealt out", parts.size());
    if (const auto reason = reasons.find(device); reason != reasons.end())
      plan.unused.push_back({problem.cluster.devices[device].name, reason->second});
  }
}

void predict(const ServeProblem& problem, ServePlan& plan) {
  const ServeCost cost = price_serve(plan, problem.options.cost);
  plan.predicted.tokens_per_s = cost.tokens_per_s;
  plan.predicted.requests_per_s = cost.requests_per_s;
  plan.predicted.latency_s = cost.latency_s;
  plan.predicted.bottleneck_s = cost.bottleneck_s;
  for (std::size_t i = 0; i < plan.routes.size(); ++i) plan.routes[i].batch = cost.routes[i].batch;
  for (const auto& stage : plan.stages) {
    const auto memory = stage_memory(plan, stage);
    for (std::size_t i = 0; i < memory.size(); ++i) plan.predicted.memory_bytes[stage.devices[i]] = memory[i];
  }
}

ServePlan write(const ServeProblem& problem, const Candidate& candidate, const std::vector<std::vector<int>>& parts) {
  ServePlan plan;
  plan.model = problem.model;
  plan.cluster = problem.cluster;
  plan.workload = problem.workload;
  plan.step = problem.options.step;
  for (const auto& part : parts) add_pipeline(problem, candidate, parts[0], part, plan);
  for (const auto& route : plan.routes) fill_kv(plan, route, problem.options.max_batch);
  predict(problem, plan);
  list_unused(problem, candidate, parts, plan);
  return plan;
}

void check_verified(const ServePlan& plan) {
  const std::vector<Violation> violations = verify(plan);
  if (violations.empty()) return;
  throw Error(ErrorCode::internal, fmt::format("the planner made a plan that does not verify: {}: {}",
                                               violations[0].place, violations[0].what));
}

// ---- searching ----

struct Part {
  std::vector<std::vector<int>> devices;  // of every pipeline; images of each other
  PartAnswer answer;
};

// How often the model could be held at most, by memory alone.
int most_pipelines(const ServeProblem& problem) {
  const double copies = usable_bytes(problem) / least_need(problem).total();
  return static_cast<int>(std::clamp(copies, 1.0, std::min(64.0, static_cast<double>(problem.cluster.devices.size()))));
}

std::vector<Part> make_parts(const ServeProblem& problem) {
  std::vector<Part> parts = {{{all_devices(problem.cluster)}, {}}};
  if (problem.options.replication == Replication::one_pipeline) return parts;
  const bool all = problem.options.use_devices == UseDevices::all;
  for (int pipelines = 2; pipelines <= most_pipelines(problem); ++pipelines) {
    auto devices = equal_parts(problem.cluster, pipelines);
    if (devices.empty()) break;
    if (all && devices[0].size() * devices.size() < problem.cluster.devices.size()) continue;
    parts.push_back({std::move(devices), {}});
  }
  return parts;
}

// Small parts first: they are quick, and the rest of the time goes to the one large pipeline. Each is searched by
// itself, so that the number of threads changes nothing.
void search_all(const ServeProblem& problem, std::vector<Part>& parts) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> failures(parts.size());
  const auto work = [&] {
    for (std::size_t i = next++; i < parts.size(); i = next++) {
      Part& part = parts[parts.size() - 1 - i];
      try {
        part.answer = search_part(problem, part.devices[0], static_cast<int>(part.devices.size()));
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted =
      std::min<std::size_t>(parts.size(), static_cast<std::size_t>(std::max(1, problem.options.threads)));
  for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

bool has_deadlines(const Workload& workload) {
  return std::any_of(workload.classes.begin(), workload.classes.end(),
                     [](const RequestClass& request) { return request.deadline != Deadline{}; });
}

SearchRecord record(const ServeProblem& problem, const std::vector<Part>& parts, const ServePrediction& predicted) {
  SearchRecord search;
  search.planner = "serve/pareto-dp";
  search.cost = problem.options.cost.form;
  search.seed = static_cast<std::int64_t>(problem.options.seed);
  bool finished = true;
  for (const auto& part : parts) {
    search.evaluated += part.answer.evaluated;
    finished = finished && part.answer.exact;
  }
  const Objective objective = problem.options.objective;
  // Pipelines of unlike shape are not searched, nor are deadlines part of the dynamic programme.
  const bool one_is_all = parts.size() == 1 || objective == Objective::latency;
  const bool exact_objective = objective != Objective::slo || !has_deadlines(problem.workload);
  if (finished && one_is_all && exact_objective) {
    search.status = SearchStatus::optimal;
    search.bound = objective == Objective::latency ? predicted.latency_s : predicted.tokens_per_s;
    search.gap = 0;
  } else if (std::chrono::steady_clock::now() >= problem.deadline) {
    search.status = SearchStatus::deadline;
  }
  return search;
}

void check_options(const ServeProblem& problem) {
  for (const DType type : {problem.weight_type, problem.kv_type})
    if (type == DType::int8 || type == DType::int4)
      throw input_error(fmt::format("{} cannot be run", name_of(type)), "use bf16, fp16 or fp32");
  if (problem.options.max_batch < 1) throw input_error("the largest batch must be at least 1");
  if (problem.cluster.devices.empty()) throw input_error("the cluster has no devices");
  if (problem.workload.classes.empty())
    throw input_error("the workload has no request class", "serving needs [[class]] tables");
}

}  // namespace

template <>
const std::vector<EnumName<Objective>>& enum_names<Objective>() {
  static const std::vector<EnumName<Objective>> names = {{Objective::slo, "slo"},
                                                         {Objective::throughput, "throughput"},
                                                         {Objective::latency, "latency"},
                                                         {Objective::flow, "flow"}};
  return names;
}

ServeOutcome plan_serve(const Cluster& cluster, const Model& model, const Workload& workload,
                        const ServeOptions& options) {
  const Instant start = std::chrono::steady_clock::now();
  const double seconds = std::clamp(options.deadline_s, 0.0, 1e6);
  const DType weight_type = options.weight_type.value_or(model.arch.checkpoint_type);
  const ServeProblem problem{
      cluster,
      model,
      workload,
      options,
      weight_type,
      options.kv_type.value_or(weight_type),
      start + std::chrono::duration_cast<Instant::duration>(std::chrono::duration<double>(seconds))};
  check_options(problem);

  ServeOutcome outcome;
  std::vector<Part> parts = make_parts(problem);
  search_all(problem, parts);
  const Part* best = nullptr;
  for (const auto& part : parts)
    if (part.answer.best && (!best || better(*part.answer.best, *best->answer.best, options.objective))) best = &part;
  if (!best) {
    say_why(problem, outcome);
    return outcome;
  }
  ServePlan plan = write(problem, *best->answer.best, best->devices);
  if (options.front == Front::whole_cluster) outcome.front = whole_front(problem, parts[0].devices[0]);
  plan.search = record(problem, parts, plan.predicted);
  plan.search.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  check_verified(plan);
  outcome.plan = std::move(plan);
  return outcome;
}

}  // namespace motley
