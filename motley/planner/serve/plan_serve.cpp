#include "motley/planner/serve/plan_serve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/model/crossing_types.hpp"
#include "motley/planner/serve/choose_types.hpp"
#include "motley/planner/serve/grouping/bound.hpp"
#include "motley/planner/serve/grouping/grouping.hpp"
#include "motley/planner/serve/grouping/roles.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/pipeline/need.hpp"
#include "motley/planner/serve/placement/placement_plan.hpp"
#include "motley/planner/serve/standby.hpp"
#include "motley/planner/serve/trial/confirm.hpp"

namespace motley {
namespace {

void check_verified(const ServePlan& plan) {
  const std::vector<Violation> violations = verify(plan);
  if (violations.empty()) return;
  throw Error(ErrorCode::internal, fmt::format("the planner made a plan that does not verify: {}: {}",
                                               violations[0].place, violations[0].what));
}

// Deadlines are kept by a pipeline's mean request; the dynamic programme minimises what a total deadline bounds, but
// knows nothing of first tokens.
bool exact_for(const Workload& workload) {
  const auto& classes = workload.classes;
  const bool none = std::all_of(classes.begin(), classes.end(),
                                [](const RequestClass& request) { return request.deadline == Deadline{}; });
  return none ||
         (classes.size() == 1 && classes[0].deadline.first_token_s == 0 && classes[0].deadline.per_token_s == 0);
}

// `apart`: no plan with roles serves more requests per second, where that is known.
SearchRecord record(const Groups& groups, const Grouping& grouping, const ServePrediction& predicted,
                    std::optional<double> apart) {
  const ServeProblem& problem = groups.problem();
  const Objective objective = problem.options.objective;
  SearchRecord search;
  search.planner = "serve/groups";
  search.objective = name_of(problem.options.objective);
  search.cost = problem.options.cost.form;
  search.seed = static_cast<std::int64_t>(problem.options.seed);
  search.evaluated = grouping.evaluated;
  const bool latency = objective == Objective::latency;
  const double value = latency ? predicted.latency_s : predicted.tokens_per_s;
  const bool exact_objective =
      objective != Objective::slo || (exact_for(problem.workload) && !worth_simulating(problem));
  const bool exact = grouping.exact && exact_objective && apart;
  if (exact && *apart <= predicted.requests_per_s * (1 + objective_tolerance)) {
    search.status = SearchStatus::optimal;
    search.bound = value;
    search.gap = 0;
    return search;
  }
  search.status = Clock::now() >= problem.deadline ? SearchStatus::deadline : SearchStatus::heuristic;
  if (latency) return search;
  const double bound = (exact ? *apart : most_requests_per_s(groups)) * problem.workload.mean_output_tokens();
  search.bound = bound;
  search.gap = (bound - value) / bound;
  if (search.status == SearchStatus::heuristic) search.status = SearchStatus::gap;
  return search;
}

void check_degree(const Cluster& cluster, const std::string& name, int degree) {
  std::vector<std::string> names;
  for (const auto& machine : cluster.machines) {
    names.push_back(machine.name);
    if (machine.name != name) continue;
    std::map<int, int> counts;
    int most = 0;
    for (const int device : machine.devices) most = std::max(most, ++counts[cluster.devices[device].type]);
    if (degree >= 1 && degree <= most) return;
    throw input_error(fmt::format("tensor-parallel degree {} on {}", degree, name),
                      fmt::format("use a degree of at most {}: its devices of one type", most));
  }
  throw input_error(fmt::format("the cluster has no machine \"{}\"", name),
                    did_you_mean(name, names, "run `motley cluster show FILE` to list its machines"));
}

void check_devices(const ServeProblem& problem) {
  for (const auto& device : problem.options.excluded) problem.cluster.find_device(device);
  if (problem.cluster.devices.empty())
    throw input_error("the cluster has no devices", "give machines devices, as in devices = [\"A100*8\"]");
  if (problem.devices().empty()) throw input_error("--without excludes every device", "exclude fewer devices");
  for (const auto& [name, degree] : problem.options.degrees) check_degree(problem.cluster, name, degree);
}

DType default_kv_type(DType weight_type) { return dtype_row(weight_type).computed_in; }

void check_types(const Model& model, const ServeOptions& options) {
  const auto check = [](DType type, Use use) {
    if (!supports(type, Support::planned, use))
      throw input_error(fmt::format("the type must be one that the engine computes in, found {}", name_of(type)),
                        "use " + names_with(Support::planned, use));
  };
  const DType weight_type = options.weight_type.value_or(model.arch.checkpoint_type);
  const DType kv_type = options.kv_type.value_or(default_kv_type(weight_type));
  check(weight_type, Use::weights);
  for (const auto& [device_type, type] : options.weight_types) check(type, Use::weights);
  check(kv_type, Use::kv);
  check_kv_type(model.arch, kv_type);
  if (options.crossing_type) check_activation_type(model.arch, *options.crossing_type);
  if (weight_type == DType::file && model.arch.tensor_types.empty())
    throw input_error(fmt::format("{} does not say the types of its tensors", model.name), types_of_a_file);
}

// What local search leaves to the other candidates of the contest, and to simulating them.
constexpr double effort_beside_simulation = 0.4;

// Pipelines of their own stages.
ServeOutcome plan_replicas(ServeProblem problem) {
  ServeOutcome outcome;
  const bool many_groups = problem.options.replication == Replication::allowed &&
                           problem.options.objective != Objective::latency && !few_enough_for_partitions(problem);
  problem.effort = problem.options.effort;
  if (many_groups || problem.effort < 1) problem.most_work = quick_work;
  if (worth_simulating(problem)) problem.effort *= effort_beside_simulation;
  Groups groups(problem);
  const Grouping grouping = search_groupings(groups);
  if (grouping.pipelines.empty()) {
    say_why(problem, outcome);
    return outcome;
  }
  ServePlan plan;
  std::optional<double> apart;
  if (worth_simulating(problem)) {
    plan = confirmed(groups, grouping);
  } else {
    plan = write_pipelines(problem, grouping.pipelines, problem.options.step);
    list_unused(groups, grouping.pipelines, plan);
    apart = keep_roles_where_better(groups, grouping, plan);
  }
  if (problem.options.front == Front::whole_cluster) outcome.front = whole_front(problem, problem.devices());
  plan.search = record(groups, grouping, plan.predicted, apart);
  outcome.plan = std::move(plan);
  return outcome;
}

// Stages that routes share, or replicas, whichever has the greater flow. The replicas are a start of the other search.
ServeOutcome plan_for_flow(const ServeProblem& problem) {
  std::vector<PlacementGroups> groups = placement_groups(problem);
  if (placements_include_replicas(problem)) {
    std::optional<ServePlan> shared = plan_placement(problem, groups, 0);
    if (shared && shared->search.status == SearchStatus::optimal)
      return {.plan = std::move(shared), .reason = {}, .hint = {}, .front = {}};
  }
  ServeProblem sooner = problem;
  sooner.deadline -= (problem.deadline - Clock::now()) / 4;
  ServeOutcome outcome = plan_replicas(sooner);
  if (outcome.plan) groups.push_back(groups_of_plan(problem, *outcome.plan));
  keep_greater_flow(problem, plan_placement(problem, groups, PlacementOptions{}.restarts), outcome);
  return outcome;
}

// What is set aside is not memory for the search. Where nothing fits so, copies get what a plan without leaves.
template <class Search>
ServeOutcome plan_with_standby(const Cluster& cluster, ServeOptions options, Search search) {
  const std::int64_t aside = *std::exchange(options.standby_bytes, std::nullopt);
  Cluster smaller = cluster;
  for (DeviceType& type : smaller.types) type.reserve_bytes = type.reserve_bytes.value_or(0) + aside;
  ServeOutcome outcome = search(smaller, options);
  if (!outcome.plan && aside > 0) outcome = search(cluster, options);
  if (!outcome.plan) return outcome;
  outcome.plan->cluster = cluster;
  fill_standby(*outcome.plan);
  check_verified(*outcome.plan);
  return outcome;
}

}  // namespace

void check_serve_options(const Model& model, const Workload& workload, const ServeOptions& options) {
  check_cost(options.cost);
  if (options.standby_bytes && *options.standby_bytes < 0)
    throw input_error("memory for standby weights must not be negative", "give a size, as in \"4 GiB\"");
  if (options.most_kl)
    check_types_may_be_chosen(model);
  else
    check_types(model, options);
  if (options.max_batch < 1)
    throw input_error("--max-batch must be at least 1", "give a number, as in --max-batch 1024 (the default)");
  if (workload.classes.empty())
    throw input_error("the workload has no request class", "add [[class]] tables: a serving plan is made for requests");
}

ServeOutcome plan_serve(const Cluster& cluster, const Model& model, const Workload& workload,
                        const ServeOptions& options) {
  check_serve_options(model, workload, options);
  if (options.standby_bytes)
    return plan_with_standby(cluster, options, [&](const Cluster& of, const ServeOptions& without) {
      return plan_serve(of, model, workload, without);
    });
  if (options.most_kl)
    return plan_with_chosen_types(cluster, model, options, [&](const ServeOptions& with_types) {
      return plan_serve(cluster, model, workload, with_types);
    });
  const Instant start = Clock::now();
  const double seconds = std::clamp(options.deadline_s, 0.0, 1e6);
  const DType weight_type = options.weight_type.value_or(model.arch.checkpoint_type);
  const ServeProblem problem{cluster,
                             model,
                             workload,
                             options,
                             weight_type,
                             options.kv_type.value_or(default_kv_type(weight_type)),
                             start + duration_of(seconds)};
  check_devices(problem);

  const bool share = options.objective == Objective::flow && options.replication == Replication::allowed &&
                     options.use_devices == UseDevices::may_idle;
  ServeOutcome outcome = share ? plan_for_flow(problem) : plan_replicas(problem);
  if (!outcome.plan) return outcome;
  outcome.plan->predicted = with_ranges(*outcome.plan, options.cost);
  outcome.plan->search.elapsed_s = seconds_since(start);
  check_verified(*outcome.plan);
  return outcome;
}

}  // namespace motley
