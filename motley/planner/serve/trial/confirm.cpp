#include "motley/planner/serve/trial/confirm.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "motley/base/parallel.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/grouping/groups.hpp"
#include "motley/planner/serve/grouping/roles.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/solve/milp.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

// Deployments on trial: written as plans, and simulated at the workload's rate or at multiples of it.

constexpr double most_scale = 1e6;
constexpr int bisections = 5;

constexpr double deadlines_per_run = 3;         // that a run lasts
constexpr std::int64_t most_requests = 10'000;  // of a run

double longest_deadline_s(const Workload& workload) {
  double longest_s = 0;
  for (const RequestClass& request : workload.classes) {
    const Deadline& deadline = request.deadline;
    const double by_tokens_s = deadline.first_token_s + deadline.per_token_s * request.output_tokens.mean;
    longest_s = std::max(longest_s, deadline.total_s > 0 ? deadline.total_s : by_tokens_s);
  }
  return longest_s;
}

void fit_batches(const ServeProblem& problem, ServePlan& plan) {
  std::vector<double> best(plan.routes.size(), 0);
  std::vector<std::int64_t> batches(plan.routes.size(), 1);
  for (const std::int64_t batch : batch_grid(problem.options.max_batch)) {
    for (auto& route : plan.routes) route.batch = batch;
    const ServeCost cost = price_serve(plan, problem.options.cost);
    for (std::size_t i = 0; i < plan.routes.size(); ++i) {
      const RouteCost& route = cost.routes[i];
      const double rate = static_cast<double>(route.batch) / route.latency_s;
      if (batch > 1 && (deadline_excess(plan.workload, route) > 0 || rate <= best[i])) continue;
      best[i] = rate;
      batches[i] = batch;
    }
  }
  const double most = *std::max_element(best.begin(), best.end());
  for (std::size_t i = 0; i < plan.routes.size(); ++i) {
    plan.routes[i].batch = batches[i];
    plan.routes[i].weight = best[i] / most;
  }
  predict(plan, problem.options.cost);
}

// As many in flight on each route as keep the deadlines by the closed form; routes weighted by what they serve then.
ServePlan trial_plan(const ServeProblem& problem, const std::vector<Pipeline>& pipelines) {
  ServePlan plan = write_pipelines(problem, pipelines, problem.options.step);
  fit_batches(problem, plan);
  return plan;
}

// The share of requests that keep their deadlines at `rate_scale` times the workload's rate. At least this many arrive,
// and more where they would arrive within a few deadlines: a queue that only grows must have time to show. Those of the
// first half, which find it empty, do not count then.
double simulated_attainment(const ServeProblem& problem, const ServePlan& plan, double rate_scale,
                            std::int64_t requests) {
  const double rate_per_s = rate_scale * plan.workload.total_rate_per_s();
  const auto long_enough = static_cast<std::int64_t>(
      std::min(deadlines_per_run * longest_deadline_s(plan.workload) * rate_per_s, static_cast<double>(most_requests)));
  const std::int64_t count = std::max(requests, long_enough);
  const auto drawn =
      draw_requests(plan.workload, {.requests = count, .rate_scale = rate_scale, .seed = problem.options.seed});
  const double from_s = count > requests ? drawn[drawn.size() / 2].arrival_s : 0;
  return simulate(plan, drawn, {.cost = problem.options.cost, .measure_from_s = from_s}).all.slo_attainment;
}

// By how much the rate may grow until less than `target` is attained. `kept`: a scale that is known to be kept.
double highest_scale(const ServeProblem& problem, const ServePlan& plan, double target, double kept,
                     std::int64_t requests) {
  if (target <= 0) return kept;  // any rate would do
  const auto keeps = [&](double scale) { return simulated_attainment(problem, plan, scale, requests) >= target; };
  double missed = kept;
  do {
    missed *= 2;
    if (expired(problem)) return kept;
  } while (missed < most_scale && keeps(missed) && (kept = missed));
  for (int i = 0; i < bisections && !expired(problem); ++i) {
    const double middle = (kept + missed) / 2;
    (keeps(middle) ? kept : missed) = middle;
  }
  return kept;
}

// Pipelines that several searches found, combined: what each serves inside the deadlines is measured by
// simulating it alone, and the best set of pipelines that share no device is a set packing, solved as such.

constexpr std::int64_t pipeline_requests = 300;
constexpr double pipeline_target = 0.98;  // of so few requests; together pipelines keep more than each alone
constexpr double first_share = 1.0 / 64;  // of what the closed form expects
constexpr std::int64_t most_nodes = 20'000;

using Column = std::pair<std::vector<int>, const Pipeline*>;  // devices in use, ascending

std::vector<Column> distinct(const std::vector<Pipeline>& proposed) {
  std::vector<Column> columns;
  std::set<std::pair<std::vector<int>, const GroupAnswer*>> known;
  for (const Pipeline& pipeline : proposed) {
    std::vector<int> devices = pipeline.used_devices();
    std::sort(devices.begin(), devices.end());
    if (known.emplace(devices, pipeline.answer.get()).second) columns.emplace_back(std::move(devices), &pipeline);
  }
  return columns;
}

// Multiples of the workload's rate that a pipeline keeps alone.
double capacity(const ServeProblem& problem, const Pipeline& pipeline) {
  const ServePlan plan = trial_plan(problem, {pipeline});
  const double least = first_share * plan.predicted.requests_per_s / problem.workload.total_rate_per_s();
  if (simulated_attainment(problem, plan, least, pipeline_requests) < pipeline_target) return 0;
  return highest_scale(problem, plan, pipeline_target, least, pipeline_requests);
}

// Best first. Empty where the deadline came first, or where no pipeline keeps the deadlines.
std::vector<Pipeline> assembled(const ServeProblem& problem, const std::vector<Pipeline>& proposed) {
  const std::vector<Column> columns = distinct(proposed);
  // Images of each other serve alike.
  std::map<const GroupAnswer*, std::size_t> number_of;
  std::vector<const Pipeline*> unlike;
  for (const auto& [devices, pipeline] : columns)
    if (number_of.try_emplace(pipeline->answer.get(), unlike.size()).second) unlike.push_back(pipeline);
  std::vector<double> capacities(unlike.size(), 0);
  in_parallel(unlike.size(), problem.options.threads, [&](std::size_t i) {
    if (!expired(problem)) capacities[i] = capacity(problem, *unlike[i]);
  });
  if (expired(problem)) return {};

  MilpModel model{.sense = Sense::maximize};
  std::map<int, MilpRow> row_of_device;
  std::vector<std::pair<double, const Pipeline*>> used;
  for (const auto& [devices, pipeline] : columns) {
    const double worth = capacities[number_of.at(pipeline->answer.get())];
    if (worth <= 0) continue;
    const int column = model.add_column({.cost = worth, .upper = 1, .integer = true});
    used.emplace_back(worth, pipeline);
    for (const int device : devices) {
      MilpRow& row = row_of_device[device];
      row.upper = 1;
      row.entries.push_back({column, 1});
    }
  }
  if (used.empty()) return {};
  for (auto& [device, row] : row_of_device) model.add_row(std::move(row));
  const MilpAnswer answer = solve_milp(model, {.relative_gap = 1e-3, .node_limit = most_nodes});
  std::vector<std::pair<double, const Pipeline*>> chosen;
  for (std::size_t i = 0; i < answer.values.size(); ++i)
    if (answer.values[i] > 0.5) chosen.push_back(used[i]);
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Pipeline> pipelines;
  for (const auto& [worth, pipeline] : chosen) pipelines.push_back(*pipeline);
  return pipelines;
}

constexpr std::int64_t trial_requests = 800;  // an attainment near 1 is then known to about 0.3 %
constexpr double alike = 0.003;               // attainments that are as good as equal
// To be kept at the highest rate, or what the best plan reaches at the given.
constexpr double target_attainment = 0.99;
constexpr double faster_by = 1.02;  // a rate that is worth a change
constexpr std::size_t most_left_out = 3;
constexpr double side_effort = 0.3;  // of the main search's, for each other objective

class Contest {
 public:
  explicit Contest(const ServeProblem& problem) : problem_(problem) {}

  void enter(const std::vector<Pipeline>& pipelines) {
    if (pipelines.empty() || !known_.insert(looks_of(pipelines)).second) return;
    proposed_.insert(proposed_.end(), pipelines.begin(), pipelines.end());
    if (best_ && expired(problem_)) return;
    judge(trial_plan(problem_, pipelines), pipelines);
  }

  // A plan that is more than pipelines, with what stays idle.
  void enter_as_it_is(ServePlan plan) { judge(std::move(plan), {}); }

  // The pipelines of all that came so far, combined; and without the weakest, which late requests may come
  // from.
  void enter_assembled() {
    if (expired(problem_)) return;
    std::vector<Pipeline> pipelines = assembled(problem_, proposed_);
    for (std::size_t left_out = 0; left_out <= most_left_out && !pipelines.empty(); ++left_out) {
      enter(pipelines);
      pipelines.pop_back();
    }
  }

  ServePlan take_best(Groups& groups) {
    best_->predicted.slo_attainment = attainment_;
    if (!pipelines_.empty()) list_unused(groups, pipelines_, *best_);
    return std::move(*best_);
  }

 private:
  double attainment(const ServePlan& plan, double scale) const {
    return simulated_attainment(problem_, plan, scale, trial_requests);
  }

  static std::vector<std::vector<std::vector<int>>> looks_of(const std::vector<Pipeline>& pipelines) {
    std::vector<std::vector<std::vector<int>>> looks;
    for (const Pipeline& pipeline : pipelines) {
      looks.push_back(pipeline.stage_devices());
      for (const auto& stage : pipeline.best().chain.stages) looks.back().push_back({static_cast<int>(stage.units)});
    }
    return looks;
  }

  void judge(ServePlan plan, const std::vector<Pipeline>& pipelines) {
    const double reached = attainment(plan, 1);
    if (best_ && reached < attainment_ - alike) return;
    const bool clearly = !best_ || reached > attainment_ + alike;
    const double target = std::min(target_attainment, std::max(reached, attainment_) - alike);
    // Equals are told apart by the rate at which they still do as well.
    if (!clearly && attainment(plan, scale_ * faster_by) < target) return;
    scale_ = highest_scale(problem_, plan, target, clearly ? 1 : scale_ * faster_by, trial_requests);
    attainment_ = reached;
    best_ = std::move(plan);
    pipelines_ = pipelines;
  }

  const ServeProblem& problem_;
  std::vector<Pipeline> proposed_;
  std::set<std::vector<std::vector<std::vector<int>>>> known_;  // of the proposed
  std::optional<ServePlan> best_;
  std::vector<Pipeline> pipelines_;  // of the best
  double attainment_ = 0;
  double scale_ = 1;
};

// Divisions that a person would try, each group with its quickest pipeline.
void enter_starts(Contest& contest, const ServeProblem& problem) {
  ServeOptions options = problem.options;
  options.objective = Objective::latency;
  const ServeProblem quick{problem.cluster, problem.model,    problem.workload, options,       problem.weight_type,
                           problem.kv_type, problem.deadline, quick_work,       problem.effort};
  Groups search(quick);
  for (const auto& start : structured_starts(search)) {
    if (expired(problem)) return;
    std::vector<Pipeline> pipelines;
    for (const auto& devices : start)
      if (Pipeline pipeline = search.best(devices); pipeline.found()) pipelines.push_back(std::move(pipeline));
    contest.enter(pipelines);
  }
}

// The best for another objective, or for deadlines that are tighter by a factor.
void enter_other(Contest& contest, const ServeProblem& problem, Objective objective, double tighter) {
  if (expired(problem)) return;
  ServeOptions options = problem.options;
  options.objective = objective;
  const Workload workload = with_deadlines_scaled(problem.workload, tighter);
  const ServeProblem other{problem.cluster,  problem.model,       workload,
                           options,          problem.weight_type, problem.kv_type,
                           problem.deadline, problem.most_work,   problem.effort * side_effort};
  Groups search(other);
  contest.enter(search_groupings(search).pipelines);
}

}  // namespace

bool worth_simulating(const ServeProblem& problem) {
  const auto& classes = problem.workload.classes;
  const bool deadlines = std::any_of(classes.begin(), classes.end(),
                                     [](const RequestClass& request) { return request.deadline != Deadline{}; });
  const bool drawn = problem.workload.arrival.process != ArrivalProcess::trace;
  return problem.options.objective == Objective::slo && problem.options.cost.form == "motley" && deadlines && drawn &&
         problem.workload.total_rate_per_s() > 0;
}

ServePlan confirmed(Groups& groups, const Grouping& grouping) {
  const ServeProblem& problem = groups.problem();
  Contest contest(problem);
  contest.enter(grouping.pipelines);
  for (auto& plan : role_candidates(groups, grouping)) contest.enter_as_it_is(std::move(plan));
  enter_starts(contest, problem);
  for (const double tighter : {0.75, 0.5, 0.3}) enter_other(contest, problem, Objective::slo, tighter);
  enter_other(contest, problem, Objective::latency, 1);
  enter_other(contest, problem, Objective::throughput, 1);
  contest.enter_assembled();
  return contest.take_best(groups);
}

}  // namespace motley
