// Deployments on trial: written as plans, and simulated at the workload's rate or at multiples of it.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/planner/serve/grouping/groups.hpp"

namespace motley {

// As many in flight on each route as keep the deadlines by the closed form; routes weighted by what they serve then.
ServePlan trial_plan(const ServeProblem& problem, const std::vector<Pipeline>& pipelines);

// The share of requests that keep their deadlines at `rate_scale` times the workload's rate. At least this many arrive,
// and more where they would arrive within a few deadlines: a queue that only grows must have time to show. Those of the
// first half, which find it empty, do not count then.
double simulated_attainment(const ServeProblem& problem, const ServePlan& plan, double rate_scale,
                            std::int64_t requests);

// By how much the rate may grow until less than `target` is attained. `kept`: a scale that is known to be kept.
double highest_scale(const ServeProblem& problem, const ServePlan& plan, double target, double kept,
                     std::int64_t requests);

}  // namespace motley
