#include "motley/planner/serve/plan_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "motley/base/units.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

struct Times {
  double first_token_s = 0, per_token_s = 0, total_s = 0;
};

constexpr const char* deadline_kinds[] = {"first_token", "per_token", "total"};
double time_of(const Times& times, std::size_t kind) {
  return kind == 0 ? times.first_token_s : kind == 1 ? times.per_token_s : times.total_s;
}
double deadline_of(const Deadline& deadline, std::size_t kind) {
  return kind == 0 ? deadline.first_token_s : kind == 1 ? deadline.per_token_s : deadline.total_s;
}

// Of a class's mean request by the closed form; as deadline_excess has it.
Times times_of(const Workload& workload, const RequestClass& request, const RouteCost& route) {
  const double first_token_s = first_token_of(workload, request, route);
  return {first_token_s, route.per_token_s,
          first_token_s + route.per_token_s * std::max(0.0, request.output_tokens.mean - 1)};
}

// Of every class, the least of each over the routes, or the greatest.
template <class Pick>
std::vector<Times> over_routes(const ServePlan& plan, const CostOptions& options, Pick pick) {
  const ServeCost cost = price_serve(plan, options);
  std::vector<Times> all;
  for (const auto& request : plan.workload.classes) {
    all.push_back(times_of(plan.workload, request, cost.routes.front()));
    for (const auto& route : cost.routes) {
      const Times times = times_of(plan.workload, request, route);
      all.back() = {pick(all.back().first_token_s, times.first_token_s),
                    pick(all.back().per_token_s, times.per_token_s), pick(all.back().total_s, times.total_s)};
    }
  }
  return all;
}

std::vector<Times> alone(ServePlan plan, const CostOptions& options) {
  for (auto& route : plan.routes) route.batch = 1;
  return over_routes(plan, options, [](double a, double b) { return std::min(a, b); });
}

std::vector<Times> kept(const ServePlan& plan, const CostOptions& options) {
  const Workload& workload = plan.workload;
  const bool drawn = workload.arrival.process != ArrivalProcess::trace && workload.total_rate_per_s() > 0;
  if (!drawn || options.form != "motley")
    return over_routes(plan, options, [](double a, double b) { return std::max(a, b); });
  constexpr std::int64_t requests = 1000;
  std::vector<Times> times;
  for (const auto& one : simulate(plan, draw_requests(workload, {.requests = requests}), {}).classes)
    times.push_back({one.ttft_s.p99, one.tpot_s.p99, one.latency_s.p99});
  return times;
}

double rounded_up(double seconds) {
  const double unit = std::pow(10.0, std::floor(std::log10(seconds)) - 1);
  return std::ceil(seconds / unit - 1e-9) * unit;
}

}  // namespace

std::vector<DeadlineOutOfReach> deadlines_out_of_reach(const std::vector<ServePlan>& plans,
                                                       const CostOptions& options) {
  const auto& classes = plans.front().workload.classes;
  std::vector<std::vector<Times>> lone, loaded;
  for (const auto& plan : plans) lone.push_back(alone(plan, options));
  const auto least = [](const std::vector<std::vector<Times>>& times, std::size_t request, std::size_t kind) {
    double best = std::numeric_limits<double>::infinity();
    for (const auto& of_plan : times) best = std::min(best, time_of(of_plan[request], kind));
    return best;
  };
  std::vector<DeadlineOutOfReach> missed;
  for (std::size_t request = 0; request < classes.size(); ++request)
    for (std::size_t kind = 0; kind < std::size(deadline_kinds); ++kind) {
      const double deadline_s = deadline_of(classes[request].deadline, kind), alone_s = least(lone, request, kind);
      if (deadline_s <= 0 || alone_s <= deadline_s) continue;
      if (loaded.empty())
        for (const auto& plan : plans) loaded.push_back(kept(plan, options));
      missed.push_back(
          {classes[request].name, deadline_kinds[kind], deadline_s, alone_s, rounded_up(least(loaded, request, kind))});
    }
  return missed;
}

namespace {

// Against what the quickest plan of all could do.
std::vector<std::string> deadline_warnings(const ServePlan& plan, ServeOptions options) {
  constexpr double quickest_within_s = 2;
  std::vector<ServePlan> plans = {plan};
  if (deadlines_out_of_reach(plans, options.cost).empty()) return {};
  options.objective = Objective::latency;
  options.deadline_s = std::min(options.deadline_s, quickest_within_s);
  ServeOutcome quickest = plan_serve(plan.cluster, plan.model, plan.workload, options);
  if (quickest.plan) plans.push_back(std::move(*quickest.plan));
  std::vector<std::string> warnings;
  for (const auto& missed : deadlines_out_of_reach(plans, options.cost))
    warnings.push_back(
        fmt::format("no plan keeps the deadline {} = \"{}\" of class \"{}\": a single request takes {}; the shortest "
                    "deadline that works is \"{:.2g} s\"",
                    missed.kind, format_quantity(missed.deadline_s, Dimension::seconds), missed.class_name,
                    human_seconds(missed.alone_s), missed.nearest_s));
  return warnings;
}

}  // namespace

std::vector<std::string> plan_warnings(const ServePlan& plan, const ServeOptions& options) {
  std::vector<std::string> warnings;
  if (options.objective == Objective::slo) warnings = deadline_warnings(plan, options);
  std::int64_t room = 0;
  for (const auto& stage : plan.stages) room = std::max(room, stage.kv_tokens);
  for (const auto& request : plan.workload.classes) {
    const double tokens = std::ceil(request.prompt_tokens.mean + request.output_tokens.mean);
    if (tokens > static_cast<double>(room))
      warnings.push_back(
          fmt::format("no route has memory for class \"{}\": its mean request has {:g} tokens, the largest KV cache "
                      "{}; shorten the requests or add device memory",
                      request.name, tokens, room));
  }
  return warnings;
}

}  // namespace motley
