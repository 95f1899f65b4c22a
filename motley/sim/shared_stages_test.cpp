// Plans whose routes share stages: steps by time against fixed sizes, and the flow that a plan is predicted to carry.
#include "motley/sim/shared_stages_test.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/serve/flow.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

ServePlan plan_named(const std::string& name) {
  const std::vector<SharedStages> all = placements_with_shared_stages();
  const auto found = std::ranges::find(all, name, &SharedStages::name);
  return plan_of(found != all.end() ? *found : throw input_error("no placement " + name, "see the list"));
}

SimResult served(ServePlan plan, double load, double duration_s, std::int64_t max_tokens, const MakeStepRule& rule) {
  plan.step.max_tokens = max_tokens;
  plan.workload.classes[0].rate_per_s = load * plan_flow(plan, {}).requests_per_s;
  return simulate(plan, draw_requests(plan.workload, {.duration_s = duration_s}),
                  {.router = {.max_queue = std::int64_t{1} << 40, .step_rule = rule, .cost = {}},
                   .measure_from_s = 0.4 * duration_s,
                   .measure_until_s = duration_s,
                   .stop_s = duration_s});
}

// Of the best of some fixed sizes, in output tokens per second.
double to_the_best_fixed(const ServePlan& plan, double load, double duration_s) {
  double best = 0;
  for (const std::int64_t tokens : {32, 64, 128, 256})
    best = std::max(best, served(plan, load, duration_s, tokens, fixed_steps).all.tokens_per_s);
  return served(plan, load, duration_s, 512, timed_steps).all.tokens_per_s / best;
}

TEST(SharedStages, StepsByTimeServeWhatFixedOnesDo) {
  EXPECT_GE(to_the_best_fixed(plan_named("24 machines"), 0.8, 300), 0.95);
  EXPECT_GE(to_the_best_fixed(plan_named("three sites, as planned"), 0.7, 200), 0.95);
  EXPECT_GE(to_the_best_fixed(plan_named("unlike replicas"), 0.85, 600), 0.95);
  EXPECT_GE(to_the_best_fixed(plan_named("desks"), 0.6, 600), 0.95);
  EXPECT_GE(to_the_best_fixed(plan_named("one head"), 0.7, 300), 0.95);
}

// The bottleneck passes tokens on for nearly all of the time.
TEST(SharedStages, WhatIsPredictedIsCarried) {
  for (const char* name : {"24 machines", "unlike replicas", "one hub"}) {
    const SimResult result = served(plan_named(name), 3, 400, 512, timed_steps);
    EXPECT_GE(std::ranges::max(result.stages, {}, &StageUse::use).use, 0.95) << name;
  }
}

}  // namespace
}  // namespace motley
