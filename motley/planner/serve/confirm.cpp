#include "motley/planner/serve/confirm.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "motley/planner/serve/roles.hpp"
#include "motley/planner/serve/write.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr std::int64_t kRequests = 800;  // an attainment near 1 is then known to about 0.3 %
constexpr double kAlike = 0.003;         // attainments that are as good as equal
constexpr double kTarget = 0.99;         // to be kept at the highest rate, or what the best plan reaches at the given
constexpr double kFarBehind = 0.3;
constexpr double kFasterBy = 1.02;  // a rate that is worth a change
constexpr int kBisections = 5;
constexpr std::int64_t kChunkParts[] = {1, 4, 8};  // of the largest step: sizes of prompt chunks that are tried
constexpr double kSideEffort = 0.3;                // of the main search's, for each other objective

bool expired(const ServeProblem& problem) { return std::chrono::steady_clock::now() >= problem.deadline; }

double attainment(const ServePlan& plan, const ServeOptions& options, double rate_scale) {
  const auto requests =
      draw_requests(plan.workload, {.requests = kRequests, .rate_scale = rate_scale, .seed = options.seed});
  return simulate(plan, requests, {.cost = options.cost}).all.slo_attainment;
}

class Contest {
 public:
  explicit Contest(const ServeProblem& problem) : problem_(problem) {}

  void enter(Groups& groups, const Grouping& grouping) {
    if (grouping.pipelines.empty()) return;  // the deadline came first
    const StepLimits most = problem_.options.step;
    for (const std::int64_t part : kChunkParts)
      for (const std::int64_t more : {0, 1}) {
        if (best_ && expired(problem_)) return;
        StepLimits step = most;
        step.max_tokens = std::max(most.max_tokens / part, std::min(most.max_tokens, most.max_sequences));
        ServePlan plan = write_pipelines(groups, grouping.pipelines, step);
        fit_batches(plan);
        for (auto& route : plan.routes) route.micro_batches += more;
        // What is far behind with the largest chunks and fewest micro-batches is not saved by others.
        if (!enter(std::move(plan)) && part == 1 && more == 0) return;
      }
  }

  void enter_as_it_is(ServePlan plan) {
    if (!expired(problem_)) enter(std::move(plan));
  }

  ServePlan take_best() {
    best_->predicted.slo_attainment = attainment_;
    return std::move(*best_);
  }

 private:
  // As many in flight on each route as keep the deadlines by the closed form, for the prediction.
  void fit_batches(ServePlan& plan) const {
    std::vector<double> best(plan.routes.size(), 0);
    std::vector<std::int64_t> batches(plan.routes.size(), 1);
    for (std::int64_t batch = 1; batch <= problem_.options.max_batch; batch *= 2) {
      for (auto& route : plan.routes) route.batch = batch;
      const ServeCost cost = price_serve(plan, problem_.options.cost);
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
    predict(plan, problem_.options.cost);
  }

  // False where it is far behind.
  bool enter(ServePlan plan) {
    const double reached = attainment(plan, problem_.options, 1);
    if (best_ && reached < attainment_ - kAlike) return reached > attainment_ - kFarBehind;
    const bool clearly = !best_ || reached > attainment_ + kAlike;
    const double target = std::min(kTarget, std::max(reached, attainment_) - kAlike);
    // Equals are told apart by the rate at which they still do as well.
    if (!clearly && attainment(plan, problem_.options, scale_ * kFasterBy) < target) return true;
    scale_ = highest_scale(plan, target, clearly ? 1 : scale_ * kFasterBy);
    attainment_ = reached;
    best_ = std::move(plan);
    return true;
  }

  // By how much the rate may grow, from one that is kept.
  double highest_scale(const ServePlan& plan, double target, double kept) const {
    double missed = kept;
    do {
      missed *= 2;
      if (expired(problem_)) return kept;
    } while (missed < kMostScale && attainment(plan, problem_.options, missed) >= target && (kept = missed));
    for (int i = 0; i < kBisections && !expired(problem_); ++i) {
      const double middle = (kept + missed) / 2;
      (attainment(plan, problem_.options, middle) >= target ? kept : missed) = middle;
    }
    return kept;
  }

  static constexpr double kMostScale = 1e6;
  const ServeProblem& problem_;
  std::optional<ServePlan> best_;
  double attainment_ = 0;
  double scale_ = 1;
};

// Divisions that a person would try, each group with its quickest pipeline.
void enter_starts(Contest& contest, const ServeProblem& problem) {
  ServeOptions options = problem.options;
  options.objective = Objective::latency;
  const ServeProblem quick{problem.cluster, problem.model,    problem.workload, options,       problem.weight_type,
                           problem.kv_type, problem.deadline, kQuickWork,       problem.effort};
  Groups search(quick), groups(problem);
  for (const auto& start : structured_starts(search)) {
    if (expired(problem)) return;
    Grouping grouping;
    for (const auto& devices : start)
      if (Pipeline pipeline = search.best(devices); pipeline.found()) grouping.pipelines.push_back(std::move(pipeline));
    contest.enter(groups, grouping);
  }
}

// The best for another objective, or for deadlines that are tighter by a factor.
void enter_other(Contest& contest, const ServeProblem& problem, Objective objective, double tighter) {
  if (expired(problem)) return;
  ServeOptions options = problem.options;
  options.objective = objective;
  Workload workload = problem.workload;
  for (auto& request : workload.classes) {
    request.deadline.first_token_s *= tighter;
    request.deadline.per_token_s *= tighter;
    request.deadline.total_s *= tighter;
  }
  const ServeProblem other{problem.cluster,  problem.model,       workload,
                           options,          problem.weight_type, problem.kv_type,
                           problem.deadline, problem.most_work,   problem.effort * kSideEffort};
  Groups search(other);
  const Grouping grouping = search_groupings(search);
  Groups groups(problem);  // the plan is for the workload as it is
  contest.enter(groups, grouping);
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
  contest.enter(groups, grouping);
  for (auto& plan : role_candidates(groups, grouping)) contest.enter_as_it_is(std::move(plan));
  enter_starts(contest, problem);
  for (const double tighter : {0.75, 0.5, 0.3}) enter_other(contest, problem, Objective::slo, tighter);
  enter_other(contest, problem, Objective::latency, 1);
  enter_other(contest, problem, Objective::throughput, 1);
  return contest.take_best();
}

}  // namespace motley
