#include "motley/planner/serve/plan_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/units.hpp"
#include "motley/planner/serve/deadlines.hpp"

namespace motley {
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
