#include "motley/batching/router.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/error.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

// On a device of its own.
void add_stage(ServePlan& plan, const std::string& id, std::int64_t kv_tokens, LayerRange layers = {0, 4},
               StageRole role = StageRole::any) {
  const std::string device = "m/" + std::to_string(plan.stages.size());
  plan.stages.push_back(
      {.id = id, .role = role, .layers = layers, .devices = {device}, .shares = {}, .kv_tokens = kv_tokens});
}

// Stages of which every route takes some, by number.
ServePlan plan_of(const std::vector<std::int64_t>& kv_tokens, const std::vector<std::vector<std::size_t>>& routes,
                  const std::string& network = "") {
  ServePlan plan;
  plan.cluster = cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "m"
devices = ["RTX 3090*8"]
)" + network);
  plan.model = llama_of(64, 4, 4, 4, 128, 256);
  plan.model.arch.context = 1000;
  plan.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  for (std::size_t i = 0; i < kv_tokens.size(); ++i) add_stage(plan, "s" + std::to_string(i), kv_tokens[i]);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    Route& route = plan.routes.emplace_back();
    route.id = "r" + std::to_string(i);
    for (const std::size_t stage : routes[i]) route.path.push_back({plan.stages[stage].id, {0, 4}});
  }
  return plan;
}

TEST(ChooseRoute, LeastLoadedInProportionToTheWeights) {
  EXPECT_EQ(choose_route({1, 1}, {0, 0}, {false, false}), 0u);
  EXPECT_EQ(choose_route({1, 1}, {1, 0}, {false, false}), 1u);
  EXPECT_EQ(choose_route({1, 3}, {1, 2}, {false, false}), 1u);
  EXPECT_EQ(choose_route({1, 3}, {1, 4}, {false, false}), 1u);
  EXPECT_EQ(choose_route({1, 3}, {1, 6}, {false, false}), 0u);
  EXPECT_EQ(choose_route({1, 3}, {0, 2}, {false, false}), 0u);
  EXPECT_EQ(choose_route({1, 3}, {0, 0}, {false, false}), 1u);
  EXPECT_EQ(choose_route({0, 1}, {0, 1000}, {false, false}), 1u);
  EXPECT_EQ(choose_route({0, 1}, {0, 1000}, {false, true}), 0u);
  EXPECT_EQ(choose_route({1, 1}, {5, 0}, {false, true}), 0u);
  EXPECT_EQ(choose_route({1, 1}, {0, 0}, {true, true}), std::nullopt);
  std::vector<double> load{0, 0, 0};
  for (int i = 0; i < 700; ++i) load[choose_route({4, 2, 1}, load, {false, false, false}).value()] += 1;
  EXPECT_EQ(load, (std::vector<double>{400, 200, 100}));
}

TEST(Router, RoutesThatShareAStageShareAScheduler) {
  const ServePlan plan = plan_of({64, 160, 320, 480, 999}, {{0, 1}, {4}, {2, 3}, {1, 2}});
  const Router router(plan, {.max_queue = 10, .cost = {}});
  EXPECT_EQ(router.groups(), 2u);
  EXPECT_EQ(router.group_of(0), router.group_of(2));  // by way of the last
  EXPECT_EQ(router.group_of(0), router.group_of(3));
  EXPECT_NE(router.group_of(0), router.group_of(1));
  EXPECT_EQ(router.kv_tokens(2), 64);
  EXPECT_EQ(router.kv_tokens(1), 992);  // whole blocks
  EXPECT_EQ(router.micro_batches(0), 3);
  EXPECT_EQ(router.micro_batches(1), 1);
  EXPECT_EQ(Router(plan, {.micro_batches = 5, .max_queue = 10, .cost = {}}).micro_batches(0), 5);
  EXPECT_EQ(router.room(0, 60), 4);
  EXPECT_EQ(router.room(1, 900), 92);
  const ServePlan roomy = plan_of({1600}, {{0}});
  EXPECT_EQ(Router(roomy, {}).room(0, 900), 100) << "the model's context ends before the blocks do";
}

TEST(Router, TheStageWithTheFewestSlotsDecides) {
  ServePlan plan = plan_of({320, 320, 320}, {{0, 1, 2}});
  plan.stages[0].kv_sequences = 5;
  plan.stages[2].kv_sequences = 3;
  Router router(plan, {});
  for (std::uint64_t id = 1; id <= 4; ++id) router.add(id, 0, 2, 3);
  std::set<std::int32_t> slots;
  while (const auto step = router.next())
    for (const ScheduledSequence& part : step->sequences) slots.insert(part.slot);
  EXPECT_EQ(slots, (std::set<std::int32_t>{0, 1, 2}));
}

TEST(Router, EachChainHasMicroBatchesOfItsOwn) {
  ServePlan plan = plan_of({320, 320}, {{0, 1}, {1}});
  EXPECT_EQ(Router(plan, {}).micro_batches(0), 3);
  EXPECT_EQ(Router(plan, {}).micro_batches(1), 1);
  plan.routes[0].micro_batches = 2;
  plan.routes[1].micro_batches = 7;
  EXPECT_EQ(Router(plan, {}).micro_batches(0), 2) << "the plan's beat the stages'";
  EXPECT_EQ(Router(plan, {}).micro_batches(1), 7);
}

TEST(Router, FarStagesGetAsManyMicroBatchesAsTheRoundTripHolds) {
  const ServePlan plan = plan_of({320, 320}, {{0, 1}}, R"(
[network]
within_machine = { latency = "2 ms", bandwidth = "1 GB/s" }
)");
  const RouteChain chain{.route = 0, .first_hop = 0, .hops = 2};
  const StepSpan span = StepTimes(plan, {}).pipelines({chain}).front().span({.tokens = 1, .logits = 1});
  const auto held = static_cast<std::int64_t>(std::ceil(span.round_s / span.busiest_s));
  EXPECT_GT(held, 10);
  EXPECT_EQ(Router(plan, {}).micro_batches(0), held);
}

// A long prompt on one route leaves the other its steps.
TEST(Router, RoutesThatShareAStageDoNotWaitForEachOthersSteps) {
  const ServePlan plan = plan_of({320, 320, 320}, {{0, 1}, {2, 1}});
  Router router(plan, {.micro_batches = 1, .max_queue = 10, .step_rule = fixed_steps, .cost = {}});
  router.add(1, 0, 100, 2);
  router.add(2, 1, 4, 1);
  router.add(3, 1, 5, 2);
  const auto first = router.next(), second = router.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->chain, 0u);
  ASSERT_EQ(first->sequences.size(), 1u);
  EXPECT_EQ(first->sequences[0].id, 1u);
  EXPECT_EQ(second->chain, 1u);
  EXPECT_EQ(second->sequences.size(), 2u);
  EXPECT_LT(first->id, second->id);
  EXPECT_FALSE(router.next());
  router.complete(second->id, {2});
  const auto decode = router.next();
  ASSERT_TRUE(decode);
  EXPECT_EQ(decode->chain, 1u);
  EXPECT_EQ(decode->sequences[0].position, 5);
  router.cancel(1);
  router.complete(first->id, {});
  router.complete(decode->id, {3});
  EXPECT_EQ(router.counts(0).free_blocks, 20);
  EXPECT_THROW(router.complete(decode->id, {}), Error);
}

// Both routes learn from what a step of one took on the stage that they share.
TEST(Router, RoutesLearnFromEachOthersStepsOnSharedStages) {
  const ServePlan plan = plan_of({320, 320, 320}, {{0, 1}, {2, 1}});
  Router router(plan, {});
  const StepLoad load{.tokens = 8, .context = 8, .cached = 64, .logits = 8};
  const double before_s = router.times(1).times()->visits[1].time.seconds(load);
  for (int i = 0; i < 50; ++i) router.measure(0, load, {before_s, 3 * before_s}, {});
  EXPECT_NEAR(router.times(1).times()->visits[1].time.seconds(load), 3 * before_s, 0.2 * before_s);
  EXPECT_EQ(router.times(1).steps(1), 50);
  EXPECT_EQ(router.times(1).steps(2), 0);
}

TEST(Router, RequestsGoWhereTheFewestAreOpen) {
  const ServePlan plan = plan_of({320, 320}, {{0}, {1}});
  Router router(plan, {.max_queue = 10, .cost = {}});
  EXPECT_EQ(router.choose(), 0u);
  router.add(1, 0, 3, 2);
  EXPECT_EQ(router.choose(), 1u);
  router.add(2, 1, 3, 2);
  router.cancel(1);
  EXPECT_EQ(router.choose(), 0u);
  router.add(3, 0, 3, 2);
  EXPECT_EQ(router.choose(), 0u) << "one each again";
  router.mask(0, true);
  EXPECT_EQ(router.choose(), 1u);
  router.mask(1, true);
  EXPECT_EQ(router.choose(), std::nullopt);
  router.mask(0, false);
  EXPECT_EQ(router.choose(), 0u);
}

TEST(Router, ARouteWithRolesHasAChainForEach) {
  ServePlan plan = plan_of({640, 160, 320}, {{2}, {}});
  add_stage(plan, "p0", 640, {0, 2}, StageRole::prefill);
  add_stage(plan, "p1", 96, {2, 4}, StageRole::prefill);
  add_stage(plan, "d", 160, {0, 4}, StageRole::decode);
  plan.routes[1].path = {{"p0", {0, 2}}, {"p1", {2, 4}}, {"d", {0, 4}}};
  Router router(plan, {.max_queue = 10, .cost = {}});
  ASSERT_EQ(router.chains().size(), 3u);
  EXPECT_EQ(router.decode_chain(0), std::nullopt);
  EXPECT_EQ(router.decode_chain(1), 2u);
  EXPECT_EQ(router.chains()[1].hops, 2u);
  EXPECT_EQ(router.chains()[2].first_hop, 2u);
  EXPECT_EQ(router.groups(), 3u);
  EXPECT_EQ(router.room(1, 50), 110);  // it decodes in 160
  EXPECT_EQ(router.room(1, 95), 65);
  EXPECT_EQ(router.room(1, 96), 0);  // the stages that prefill have no room for the token

  // A sequence whose prompt came by the network begins with a decode.
  router.add(7, 2, 33, 4, 32);
  const auto step = router.next();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->sequences[0].position, 32);
  EXPECT_EQ(step->sequences[0].count, 1);
  EXPECT_TRUE(step->sequences[0].samples);
}

}  // namespace
}  // namespace motley
