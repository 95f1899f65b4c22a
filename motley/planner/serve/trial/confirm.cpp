#include "motley/planner/serve/trial/confirm.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "motley/planner/serve/grouping/roles.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/trial/assemble.hpp"

namespace motley {
namespace {

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
