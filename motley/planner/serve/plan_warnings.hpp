// What a plan was asked for and cannot give.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

struct DeadlineOutOfReach {
  std::string class_name;
  std::string kind;  // "first_token", "per_token", "total"
  double deadline_s = 0;
  double alone_s = 0;    // what the mean request takes on the quickest route of all with nothing else running
  double nearest_s = 0;  // what one of the plans keeps under its workload
};

// Deadlines that even a lone request misses on all of these plans for one workload; at least one plan. `nearest_s` is
// what 99 % of the simulated requests keep where the workload has a rate, otherwise the closed form at the plan's
// batches; rounded up to two digits.
std::vector<DeadlineOutOfReach> deadlines_out_of_reach(const std::vector<ServePlan>& plans, const CostOptions& options);

// `options` are those that it was planned with. With the objective slo, deadlines out of reach are named with what
// the quickest plan of all could keep, which is searched for here.
std::vector<std::string> plan_warnings(const ServePlan& plan, const ServeOptions& options);

}  // namespace motley
