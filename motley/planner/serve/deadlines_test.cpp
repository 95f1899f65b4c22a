#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/plan_warnings.hpp"

#include <gtest/gtest.h>

#include <cstdio>

#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

ServePlan d1_plan(const Workload& workload) {
  return plan_serve(d1_cluster(), d1_model(), workload,
                    {.objective = Objective::throughput, .front = Front::skip, .roles = StageRoles::both})
      .plan.value();
}

// The route of a plan with one request in flight.
RouteCost alone(ServePlan plan) {
  for (auto& route : plan.routes) route.batch = 1;
  return price_serve(plan, {}).routes.at(0);
}

TEST(Deadlines, OnlyWhatALoneRequestMissesIsOutOfReach) {
  Workload workload = d1_workload();  // 128 tokens in, 32 out
  const ServePlan plan = d1_plan(workload);
  const RouteCost lone = alone(plan);
  const double total_s = lone.first_token_s + 31 * lone.per_token_s;
  const auto missed = [&](const Deadline& deadline) {
    ServePlan other = plan;
    other.workload.classes[0].deadline = deadline;
    return deadlines_out_of_reach({other}, {});
  };
  EXPECT_TRUE(missed({}).empty());
  EXPECT_TRUE(missed({.first_token_s = lone.first_token_s * 1.01,
                      .per_token_s = lone.per_token_s * 1.01,
                      .total_s = total_s * 1.01})
                  .empty());
  const auto all = missed(
      {.first_token_s = lone.first_token_s * 0.99, .per_token_s = lone.per_token_s * 0.99, .total_s = total_s * 0.99});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].kind, "first_token");
  EXPECT_EQ(all[1].kind, "per_token");
  EXPECT_EQ(all[2].kind, "total");
  EXPECT_NEAR(all[0].alone_s, lone.first_token_s, 1e-12);
  EXPECT_NEAR(all[1].alone_s, lone.per_token_s, 1e-12);
  EXPECT_NEAR(all[2].alone_s, total_s, 1e-12);
  EXPECT_NEAR(all[2].deadline_s, total_s * 0.99, 1e-12);
  for (const auto& one : all) EXPECT_GE(one.nearest_s, one.alone_s * (1 - 1e-9)) << one.kind;
}

// A class with half the mean prompt waits half as long for its first token.
TEST(Deadlines, AClassIsJudgedByItsOwnLengths) {
  Workload workload = d1_workload();
  workload.classes.push_back(workload.classes[0]);
  workload.classes[0].name = "brief";
  workload.classes[0].prompt_tokens.mean = 64;
  workload.classes[1].name = "lengthy";
  workload.classes[1].prompt_tokens.mean = 192;
  for (auto& request : workload.classes) request.deadline.first_token_s = 1e-9;
  const auto missed = deadlines_out_of_reach({d1_plan(workload)}, {});
  ASSERT_EQ(missed.size(), 2u);
  EXPECT_EQ(missed[0].class_name, "brief");
  EXPECT_NEAR(missed[1].alone_s / missed[0].alone_s, 3, 1e-9);
}

TEST(Deadlines, AllAreScaled) {
  Workload workload = d1_workload();
  workload.classes[0].deadline = {.first_token_s = 2, .per_token_s = 0.1, .total_s = 10};
  EXPECT_EQ(with_deadlines_scaled(workload, 0.5).classes[0].deadline,
            (Deadline{.first_token_s = 1, .per_token_s = 0.05, .total_s = 5}));
}

// What stays idle would slow down those at work: the reason tells both figures.
TEST(Unused, TheReasonComparesWithAndWithout) {
  const Cluster cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "a", devices = ["RTX 4090*2"] }, { name = "b", devices = ["mini"] }]
network.within_site = { latency = "1 ms", bandwidth = "100 Mbit/s" }
[[device_type]]
name = "mini"
vendor = "cpu"
memory = "8 GiB"
memory_bandwidth = "3 GB/s"
flops = { fp16 = "15 GFLOP/s" }
)");
  const ServeOptions options{.objective = Objective::throughput,
                             .replication = Replication::one_pipeline,
                             .front = Front::skip,
                             .roles = StageRoles::both};
  const auto plan = plan_serve(cluster, d1_model(), d1_workload(), options).plan;
  ASSERT_TRUE(plan);
  ASSERT_FALSE(plan->unused.empty());
  const UnusedDevice& idle = plan->unused.back();
  EXPECT_EQ(idle.device, "b/0");
  double with = 0, without = 0;
  ASSERT_EQ(
      std::sscanf(idle.reason.c_str(), "%lf tokens/s with 1 more mini in use, %lf tokens/s without", &with, &without),
      2)
      << idle.reason;
  EXPECT_LT(with, without);
  EXPECT_NEAR(without, plan->predicted.tokens_per_s, 1e-3 * without);
}

TEST(Degrees, AreThoseThatAreAskedFor) {
  for (const int degree : {1, 2}) {
    ServeOptions options{.objective = Objective::latency, .front = Front::skip};
    options.degrees = {{"m0", degree}, {"m1", degree}};
    const auto plan = plan_serve(d1_cluster(), d1_model(), d1_workload(), options).plan;
    ASSERT_TRUE(plan);
    for (const auto& stage : plan->stages) EXPECT_EQ(std::ssize(stage.devices), degree);
  }
}

}  // namespace
}  // namespace motley
