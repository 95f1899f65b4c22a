#include "motley/planner/serve/trial/trial.hpp"

#include <algorithm>

#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

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

}  // namespace

ServePlan trial_plan(const ServeProblem& problem, const std::vector<Pipeline>& pipelines) {
  ServePlan plan = write_pipelines(problem, pipelines, problem.options.step);
  fit_batches(problem, plan);
  return plan;
}

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

}  // namespace motley
