// The simulator against closed forms: single queues, chains of stages, deadlines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/cost/serve/flow.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/sim/plans_test.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

SimResult run(const ServePlan& plan, const std::vector<TraceRequest>& requests, SimOptions options = {}) {
  options.router.max_queue = no_limit;
  return simulate(plan, requests, options);
}

// ---- one queue ----

TEST(SingleQueue, MeanWaitIsThatOfMD1) {
  // Pollaczek-Khinchine with constant service x: rho x / (2 (1 - rho)).
  constexpr double service_s = 0.5;
  for (const double load : {0.3, 0.6, 0.85}) {
    ServePlan plan = single_queue(200, 100);
    plan.workload.classes[0].rate_per_s = load / service_s;
    plan.workload.classes[0].prompt_tokens.mean = 100;
    const SimResult result = run(plan, draw_requests(plan.workload, {.requests = 100'000, .seed = 5}));
    double waited_s = 0;
    for (const RequestRecord& record : result.records) waited_s += record.latency_s() - service_s;
    const double expected_s = load * service_s / (2 * (1 - load));
    EXPECT_NEAR(waited_s / 100'000, expected_s, 0.04 * expected_s) << load;
    EXPECT_NEAR(result.stages[0].use, load, 0.01) << load;
    // Little's law for those that wait.
    EXPECT_NEAR(result.queues[0].waiting_mean, waited_s / 100'000 * load / service_s, 0.01 * (1 + expected_s)) << load;
  }
}

TEST(SingleQueue, ArrivalsAsSlowAsServiceAllKeepAnyDeadlineFromServiceOn) {
  constexpr double service_s = 0.5;  // 512 tokens at 1024 per second
  for (const double spacing : {1.0, 1.5}) {
    ServePlan plan = single_queue(1024, 512);
    plan.workload.classes[0].deadline.total_s = service_s;
    const auto requests = regular(200, spacing * service_s, 512, 1);
    EXPECT_EQ(run(plan, requests).all.slo_attainment, 1);
    plan.workload.classes[0].deadline.total_s = service_s * (1 - tick);
    EXPECT_EQ(run(plan, requests).all.slo_attainment, 0);
  }
}

TEST(SingleQueue, ArrivalsTwiceAsFastAsServiceGrowTheQueueByHalfAServiceEach) {
  // Request k comes at k x / 2 and leaves at (k + 1) x: a deadline of 3 x is kept by k <= 4.
  constexpr double service_s = 0.5;
  ServePlan plan = single_queue(1024, 512);
  plan.workload.classes[0].deadline.total_s = 3 * service_s;
  const SimResult result = run(plan, regular(100, service_s / 2, 512, 1));
  EXPECT_EQ(result.all.slo_attainment, 0.05);
  for (std::size_t k = 0; k < 100; ++k)
    EXPECT_DOUBLE_EQ(result.records[k].latency_s(), service_s * (1 + static_cast<double>(k) / 2));
  EXPECT_EQ(result.queues[0].waiting_peak, 50);  // when the last comes, 49 are gone and one is served
}

TEST(SingleQueue, WhatTheQueueDoesNotHoldIsRefusedAndMissesItsDeadline) {
  const SimResult result = simulate(single_queue(1024, 512), regular(10, 0, 512, 1), {.router = {.max_queue = 3}});
  EXPECT_EQ(result.all.refused, 6);
  EXPECT_EQ(result.all.finished, 4);
  EXPECT_EQ(result.all.slo_attainment, 0.4);
}

// ---- one request ----

TEST(Request, TimesFollowFromStagesLinksAndTheWayBack) {
  // Two stages of 100 and 50 tokens/s, 10 ms and 1 MB/s between them: hidden states of 64 x 2 bytes.
  ServePlan plan = chain_plan({100, 50}, 0.01, 1e6);
  plan.step.max_tokens = 20;
  const SimResult result = run(plan, regular(1, 0, 30, 4), {.router = {.step_rule = fixed_steps}});
  const double to_next_s = 0.01 + 128 / 1e6, back_s = 0.01 + 8 / 1e6;
  // The second chunk follows at once: the slower stage computes one after the other.
  const double first_s = 20.0 / 100 + 0.01 + 20 * 128 / 1e6 + 20.0 / 50 + 10.0 / 50 + back_s;
  const double per_token_s = 1.0 / 100 + 1.0 / 50 + to_next_s + back_s;
  const RequestRecord& record = result.records[0];
  EXPECT_NEAR(record.first_token_s, first_s, tick);
  EXPECT_NEAR(record.tpot_s(), per_token_s, tick);
  EXPECT_NEAR(record.last_token_s, first_s + 3 * per_token_s, tick);
  EXPECT_EQ(result.stages[1].steps, 5);
  EXPECT_NEAR(result.stages[1].tokens_per_step, 33.0 / 5, tick);
  ASSERT_EQ(result.links.size(), 1u);
  EXPECT_EQ(result.links[0].from, "m0");
  EXPECT_EQ(result.links[0].to, "m1");
  EXPECT_NEAR(result.links[0].bytes, 33 * 128, tick);
  EXPECT_NEAR(result.links[0].use, 33 * 128 / 1e6 / record.last_token_s, tick);
}

TEST(Request, StepsAreTimedByTheCostModelWhereNothingIsMeasured) {
  ServePlan plan = chain_plan({1, 1}, 0.001, 1e9);
  plan.profile = {};
  const SimResult result = run(plan, regular(1, 0, 100, 3));
  const StepCost cost({}, plan.cluster, plan.model.arch);
  const auto group = [&](int device) {
    return make_group(plan.cluster, plan.model.arch, {device}, {}, DType::bf16, DType::bf16, plan.step);
  };
  const auto stage_s = [&](int device, StageEnds ends, const StepLoad& load) {
    return 2 * cost.block_s(group(device), 0, load) + cost.ends_s(group(device), ends, load);
  };
  const auto step_s = [&](const StepLoad& load) {
    return stage_s(0, {.first = true, .last = false}, load) + stage_s(1, {.first = false, .last = true}, load) +
           cost.crossing(group(0), group(1), load.tokens).seconds(cost.activation_bytes(group(0), load.tokens)) +
           cost.token_return_s(group(1), group(0), 1);
  };
  EXPECT_NEAR(result.records[0].first_token_s, step_s({100, 50, 50, 1}), tick);
  const double decodes_s = step_s({1, 100.5, 100.5, 1}) + step_s({1, 101.5, 101.5, 1});
  EXPECT_NEAR(result.records[0].latency_s(), step_s({100, 50, 50, 1}) + decodes_s, tick);
}

TEST(Request, TheDriverComesBeforeItsStepsAndBetweenThem) {
  ServePlan plan = chain_plan({100, 50}, 0.01, 1e6);
  plan.cluster.description.driver = DriverCost{.step_s = 0.003, .request_s = 0.5};
  const SimResult result = run(plan, regular(1, 0, 30, 4));
  const auto stages_s = [](double tokens) { return tokens / 100 + tokens / 50 + 0.01 + tokens * 128 / 1e6; };
  const RequestRecord& record = result.records[0];
  EXPECT_NEAR(record.ttft_s(), 0.5 + stages_s(30) + 0.003, tick);
  EXPECT_NEAR(record.tpot_s(), stages_s(1) + 0.003, tick);
}

// A chain of one stage, with the driver at another machine, 10 ms away.
TEST(Request, TokensOfAFarStageTakeTheWayToTheDriverAndBack) {
  ServePlan plan =
      timed_plan({{.tokens_per_s = 100, .layers = {0, 2}}, {.tokens_per_s = 50, .layers = {0, 2}}}, {{0}}, 0.01, 1e6);
  plan.cluster.description.driver = DriverCost{.machine = "m1", .step_s = 0.003};
  const double back_s = 2 * (0.01 + 8 / 1e6) + 0.003;
  EXPECT_NEAR(run(plan, regular(1, 0, 1, 4)).records[0].latency_s(), 4 * (1.0 / 100 + back_s), tick);
  plan.cluster.description.driver->machine = "m0";
  EXPECT_NEAR(run(plan, regular(1, 0, 1, 4)).records[0].latency_s(), 4 * (1.0 / 100 + 0.003), tick);
}

// Two stages that compute at once, where the host has cores for one only.
TEST(Request, WorkersOfOneHostShareItsCores) {
  ServePlan plan = chain_plan({100, 100}, 0, 1e12);
  const auto tpot_s = [&](std::int64_t cores) {
    plan.cluster.description.local = LocalHost{.cores = cores};
    return run(plan, regular(2, 0.005, 1, 200)).all.tpot_s.p50;
  };
  EXPECT_NEAR(tpot_s(2), 0.02, 1e-4);
  EXPECT_NEAR(tpot_s(1), 0.04, 2e-3);
  // One request is in one stage at a time: one that waits takes no core.
  EXPECT_NEAR(run(plan, regular(1, 0, 1, 200)).all.tpot_s.p50, 0.02, 1e-4);
}

TEST(Request, EachDeadlineIsJudgedByItsOwn) {
  // 32 tokens in at 64 per second, then 3 tokens.
  ServePlan plan = timed_plan({{.tokens_per_s = 64}}, {{0}});
  const double first_s = 0.5, per_token_s = 1.0 / 64, total_s = first_s + 2 * per_token_s;
  const auto attainment = [&](const Deadline& deadline) {
    plan.workload.classes[0].deadline = deadline;
    return run(plan, regular(1, 0, 32, 3)).all.slo_attainment;
  };
  EXPECT_EQ(attainment({}), 1);
  EXPECT_EQ(attainment({.first_token_s = first_s, .per_token_s = per_token_s, .total_s = total_s}), 1);
  EXPECT_EQ(attainment({.first_token_s = first_s * 0.99}), 0);
  EXPECT_EQ(attainment({.per_token_s = per_token_s * 0.99}), 0);
  EXPECT_EQ(attainment({.total_s = total_s * 0.99}), 0);
}

TEST(Request, ClassesHaveTheirOwnDeadlinesAndLines) {
  ServePlan plan = timed_plan({{.tokens_per_s = 64}}, {{0}});
  plan.workload.classes.push_back(plan.workload.classes[0]);
  plan.workload.classes[1].name = "code";
  plan.workload.classes[1].deadline.total_s = 0.1;
  const SimResult result = run(plan, {{0, 32, 1, "chat"}, {10, 32, 1, "code"}, {20, 32, 1, "chat"}});
  ASSERT_EQ(result.classes.size(), 2u);
  EXPECT_EQ(result.classes[0].requests, 2);
  EXPECT_EQ(result.classes[0].slo_attainment, 1);
  EXPECT_EQ(result.classes[1].slo_attainment, 0);
  EXPECT_NEAR(result.all.slo_attainment, 2.0 / 3, tick);
  EXPECT_THROW(run(plan, {{0, 32, 1, "chta"}}), Error);
}

// ---- chains ----

// Output tokens per second under a burst that lasts, prompts of 16 and outputs of 16 tokens.
double steady_rate(const ServePlan& plan) {
  const auto requests = regular(600, 0, 16, 16);
  const SimResult whole = run(plan, requests);
  SimOptions middle{.measure_from_s = 0.2 * whole.measured_s, .measure_until_s = 0.8 * whole.measured_s};
  return run(plan, requests, middle).all.tokens_per_s;
}
constexpr double flow_per_output = 31.0 / 16;  // tokens through every stage for each that comes out

TEST(Chain, SteadyRateIsTheLeastCapacity) {
  for (const std::vector<double>& rates :
       {std::vector<double>{500, 200, 700}, {200, 500, 700, 600}, {300, 300, 300, 300}}) {
    ServePlan plan = chain_plan(rates);
    plan.step.max_tokens = 16;
    const double least = std::ranges::min(rates);
    const double rate = steady_rate(plan);
    EXPECT_NEAR(rate * flow_per_output, least, 0.05 * least);
    plan.workload = workload_of(16, 16);
    const double flow = plan_flow(plan, {}).output_tokens_per_s;
    EXPECT_NEAR(rate, flow, 0.05 * flow);
  }
}

TEST(Chain, ASlowLinkIsTheLeastCapacity) {
  ServePlan plan = chain_plan({500, 400, 700}, 0.001, 150 * 128);  // 150 hidden states per second
  plan.step.max_tokens = 16;
  EXPECT_NEAR(steady_rate(plan) * flow_per_output, 150, 0.05 * 150);
  plan.profile.link_tokens = {{"m0", "m1", 120}, {"m1", "m2", 900}};
  EXPECT_NEAR(steady_rate(plan) * flow_per_output, 120, 0.05 * 120);
}

TEST(Chain, MicroBatchesKeepAllStagesBusy) {
  ServePlan plan = chain_plan({300, 300, 300, 300});
  plan.step.max_tokens = 16;
  const SimResult full = run(plan, regular(400, 0, 16, 16));
  for (const StageUse& stage : full.stages) EXPECT_GT(stage.use, 0.95) << stage.stage;
  const SimResult one = run(plan, regular(400, 0, 16, 16), {.router = {.micro_batches = 1}});
  for (const StageUse& stage : one.stages) EXPECT_NEAR(stage.use, 0.25, 0.01) << stage.stage;
}

TEST(Chain, PipelinesSideBySideAddUp) {
  const std::vector<TimedStage> stages(3, {.tokens_per_s = 200});
  ServePlan plan = timed_plan(stages, {{0}, {1}, {2}});
  plan.step.max_tokens = 16;
  EXPECT_NEAR(steady_rate(plan) * flow_per_output, 600, 0.05 * 600);
}

TEST(Chain, RoutesThatShareAStageShareItsTime) {
  // Both routes end on s2, which is slower than the two before it together.
  ServePlan plan = timed_plan({{.tokens_per_s = 200, .layers = {0, 4}},
                               {.tokens_per_s = 200, .layers = {0, 4}},
                               {.tokens_per_s = 300, .layers = {4, 8}}},
                              {{0, 2}, {1, 2}});
  plan.step.max_tokens = 32;
  EXPECT_NEAR(steady_rate(plan) * flow_per_output, 300, 0.05 * 300);
}

}  // namespace
}  // namespace motley
