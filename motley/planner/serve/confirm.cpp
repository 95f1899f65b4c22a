#include "motley/planner/serve/confirm.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "motley/planner/serve/write.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr std::int64_t kRequests = 800;  // an attainment near 1 is then known to about 0.3 %
constexpr double kAlike = 0.003;         // attainments that are as good as equal
constexpr double kTarget = 0.99;         // to be kept at the highest rate, or what the best plan reaches at the given
constexpr double kFasterBy = 1.02;       // a rate that is worth a change
constexpr int kBisections = 5;
constexpr std::int64_t kSmallestChunk = 32;
constexpr double kSideEffort = 0.3;  // of the main search's, for each other objective

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
    for (StepLimits step = most; step.max_tokens >= std::min(kSmallestChunk, most.max_tokens); step.max_tokens /= 2) {
      if (best_ && expired(problem_)) return;
      if (step.max_tokens < step.max_sequences && step.max_tokens < most.max_tokens) return;
      enter(write_pipelines(groups, grouping.pipelines, step));
    }
  }

  ServePlan take_best() {
    best_->predicted.slo_attainment = attainment_;
    return std::move(*best_);
  }

 private:
  void enter(ServePlan plan) {
    const double reached = attainment(plan, problem_.options, 1);
    if (best_ && reached < attainment_ - kAlike) return;
    const bool clearly = !best_ || reached > attainment_ + kAlike;
    const double target = std::min(kTarget, std::max(reached, attainment_) - kAlike);
    // Equals are told apart by the rate at which they still do as well.
    if (!clearly && attainment(plan, problem_.options, scale_ * kFasterBy) < target) return;
    scale_ = highest_scale(plan, target, clearly ? 1 : scale_ * kFasterBy);
    attainment_ = reached;
    best_ = std::move(plan);
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
  for (const double tighter : {0.5, 0.25}) enter_other(contest, problem, Objective::slo, tighter);
  enter_other(contest, problem, Objective::latency, 1);
  enter_other(contest, problem, Objective::throughput, 1);
  return contest.take_best();
}

}  // namespace motley
