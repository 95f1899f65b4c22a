#include "motley/planner/serve/replan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

constexpr StepLimits small_step{.max_tokens = 64, .max_sequences = 4, .block_tokens = 16};

// Six layers; "wide" holds four of them, "narrow" three at half the speed.
Model model() { return llama_of(1024, 6, 8, 8, 2816, 4000); }

Cluster cluster_with(const std::string& machines) {
  return cluster_of("format = \"motley.cluster/1\"\nmachine = [" + machines + R"(]
[[device_type]]
name = "wide"
vendor = "nvidia"
memory = "150 MiB"
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "8 MiB"
[[device_type]]
name = "narrow"
vendor = "nvidia"
memory = "120 MiB"
memory_bandwidth = "200 GB/s"
flops = { fp16 = "20 TFLOP/s" }
reserve = "8 MiB"
[network]
within_site = { latency = "10 us", bandwidth = "100 GB/s" }
)");
}

ServeOptions options_for(Objective objective) {
  return {.objective = objective,
          .step = small_step,
          .deadline_s = 2,
          .stage_types = StageTypes::alike,
          .front = Front::skip,
          .max_batch = 8,
          .roles = StageRoles::both};
}

Stage stage_of(std::string id, LayerRange layers, std::vector<std::string> devices) {
  Stage stage;
  stage.embedding = layers.first == 0;
  stage.head = layers.end == 6;
  stage.id = std::move(id);
  stage.layers = layers;
  stage.devices = std::move(devices);
  stage.weight_type = stage.kv_type = DType::fp16;
  stage.kv_tokens = 256;
  return stage;
}

ServePlan plan_of(const Cluster& cluster, std::vector<Stage> stages, std::vector<Route> routes) {
  ServePlan plan;
  plan.model = model();
  plan.cluster = cluster;
  plan.workload = workload_of(60, 20);
  plan.step = small_step;
  plan.stages = std::move(stages);
  plan.routes = std::move(routes);
  plan.predicted.requests_per_s = 1;
  return plan;
}

std::set<std::string> devices_of(const ServePlan& plan) {
  std::set<std::string> devices;
  for (const auto& stage : plan.stages)
    for (const auto& device : stage.devices) EXPECT_TRUE(devices.insert(device).second) << device << " twice";
  return devices;
}

std::string reason_of(const ServePlan& plan, const std::string& device) {
  for (const auto& unused : plan.unused)
    if (unused.device == device) return unused.reason;
  return "";
}

// Two routes of two devices; one device goes, and what is left of its route joins a spare one.
TEST(Replan, RoutesThatLoseNothingStayAsTheyAre) {
  const Cluster cluster = cluster_with(R"({ name = "a", count = 5, devices = ["wide"] })");
  ServeOptions options = options_for(Objective::throughput);
  options.excluded = {"a-4/0"};
  const ServePlan before = plan_serve(cluster, model(), workload_of(60, 20), options).plan.value();
  ASSERT_EQ(before.routes.size(), 2u);
  const Route& stays = before.routes[0];
  const std::string gone = before.stage(before.routes[1].path[0].stage).devices[0];
  options.excluded.clear();
  const ServeOutcome outcome = replan_serve(before, {gone}, options);
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  const ServePlan& after = *outcome.plan;
  EXPECT_TRUE(verify(after).empty());
  EXPECT_EQ(after.search.planner, "serve/replan");
  ASSERT_EQ(after.routes.size(), 2u);
  EXPECT_EQ(after.routes[0], stays);
  for (const auto& hop : stays.path) EXPECT_EQ(after.stage(hop.stage), before.stage(hop.stage));
  EXPECT_EQ(after.routes[1].id, "r2") << "the name of a lost route is not used again";
  EXPECT_EQ(after.routes[1].weight, 1) << "as good as the other";
  const std::set<std::string> used = devices_of(after);
  EXPECT_EQ(used.size(), 4u);
  EXPECT_TRUE(used.contains("a-4/0"));
  EXPECT_EQ(reason_of(after, gone), "lost");
}

// Two routes through one first stage; b-2/0 rests.
ServePlan routes_that_share() {
  const Cluster cluster =
      cluster_with(R"({ name = "a", devices = ["wide"] }, { name = "b", count = 3, devices = ["narrow"] })");
  return plan_of(cluster,
                 {stage_of("x", {0, 3}, {"a/0"}), stage_of("y", {3, 6}, {"b-0/0"}), stage_of("z", {3, 6}, {"b-1/0"})},
                 {{.id = "r0", .path = {{"x", {0, 3}}, {"y", {3, 6}}}, .weight = 1, .batch = 4},
                  {.id = "r1", .path = {{"x", {0, 3}}, {"z", {3, 6}}}, .weight = 1, .batch = 4}});
}

// One that rests is lost: nothing changes.
TEST(Replan, AnIdleDeviceIsNoLossWhereRoutesShareStages) {
  const ServePlan before = routes_that_share();
  const ServeOutcome outcome = replan_serve(before, {"b-2/0"}, options_for(Objective::throughput));
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  EXPECT_EQ(outcome.plan->stages, before.stages);
  EXPECT_EQ(outcome.plan->routes.size(), 2u);
  EXPECT_EQ(reason_of(*outcome.plan, "b-2/0"), "lost");
  const WeightMoves moves = weight_moves(before, *outcome.plan);
  EXPECT_EQ(moves.loaded_bytes, 0);
  EXPECT_GT(moves.kept_bytes, 0);
}

// One wide device before two narrow ones carries more than one pipeline of two.
TEST(Replan, NewRoutesMayShareStages) {
  const Cluster cluster =
      cluster_with(R"({ name = "a", devices = ["wide"] }, { name = "b", count = 3, devices = ["narrow"] })");
  const ServePlan before = plan_of(
      cluster, {stage_of("x", {0, 2}, {"a/0"}), stage_of("y", {2, 4}, {"b-0/0"}), stage_of("z", {4, 6}, {"b-2/0"})},
      {{.id = "r0", .path = {{"x", {0, 2}}, {"y", {2, 4}}, {"z", {4, 6}}}, .weight = 1, .batch = 4}});
  const ServeOutcome outcome = replan_serve(before, {"b-2/0"}, options_for(Objective::flow));
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  const ServePlan& after = *outcome.plan;
  EXPECT_TRUE(verify(after).empty());
  EXPECT_EQ(devices_of(after).size(), 3u);
  ASSERT_EQ(after.routes.size(), 2u);
  EXPECT_EQ(after.routes[0].path[0].stage, after.routes[1].path[0].stage);
  EXPECT_NE(after.routes[0].path[1].stage, after.routes[1].path[1].stage);
}

TEST(Replan, WhatHoldsNoMoreLeavesNoPlan) {
  const Cluster cluster = cluster_with(R"({ name = "a", count = 2, devices = ["wide"] })");
  const ServePlan before = plan_of(cluster, {stage_of("x", {0, 3}, {"a-0/0"}), stage_of("y", {3, 6}, {"a-1/0"})},
                                   {{.id = "r0", .path = {{"x", {0, 3}}, {"y", {3, 6}}}, .weight = 1, .batch = 4}});
  const ServeOutcome outcome = replan_serve(before, {"a-1/0"}, options_for(Objective::throughput));
  EXPECT_FALSE(outcome.plan);
  EXPECT_FALSE(outcome.reason.empty());
  EXPECT_THROW(replan_serve(before, {"a-7/0"}, options_for(Objective::throughput)), Error);
}

// Before a deployment gives up, what is left streams the layers that its memory does not hold.
TEST(Replan, WhatHoldsNoMoreStreamsWhereItCan) {
  const auto lost_one_of = [](const std::string& tiers) {
    const Cluster cluster = cluster_with("{ name = \"a\", count = 2, devices = [\"wide\"]" + tiers + " }");
    ServePlan before = plan_of(cluster, {stage_of("x", {0, 3}, {"a-0/0"}), stage_of("y", {3, 6}, {"a-1/0"})},
                               {{.id = "r0", .path = {{"x", {0, 3}}, {"y", {3, 6}}}, .weight = 1, .batch = 4}});
    predict(before, {});
    return replan_serve(before, {"a-1/0"}, options_for(Objective::throughput));
  };
  EXPECT_FALSE(lost_one_of("").plan);
  for (const char* tiers : {", host_memory = \"200 MiB\"",
                            ", disk = { capacity = \"1 GB\", read = \"1 GB/s\", write = \"1 GB/s\" }, "
                            "host_memory = \"60 MiB\""}) {
    const ServeOutcome outcome = lost_one_of(tiers);
    ASSERT_TRUE(outcome.plan) << outcome.reason;
    EXPECT_TRUE(verify(*outcome.plan).empty());
    ASSERT_EQ(outcome.plan->stages.size(), 1u);
    EXPECT_EQ(outcome.plan->stages[0].devices, std::vector<std::string>{"a-0/0"});
    ASSERT_TRUE(outcome.plan->stages[0].offload);
    EXPECT_GE(counts_of(outcome.plan->stages[0].offload->weights, 6).away(), 2);
  }
}

// A layer is 2 (4 x 1024 x 1024 + 3 x 1024 x 2816 + 2 x 1024) bytes.
TEST(Replan, WeightsThatStayAreThoseOfTheSameRankAndDegree) {
  const Cluster cluster = cluster_with(R"({ name = "a", devices = ["wide*4"] })");
  const std::int64_t layer = 2 * (4 * 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024);
  const auto moves = [&](std::vector<Stage> from, std::vector<Stage> to) {
    return weight_moves(plan_of(cluster, std::move(from), {}), plan_of(cluster, std::move(to), {}));
  };
  // The first device gives layer 3 to the second, which has four of its six layers still.
  const WeightMoves shifted = moves({stage_of("x", {0, 4}, {"a/0"}), stage_of("y", {4, 6}, {"a/1"})},
                                    {stage_of("x", {0, 3}, {"a/0"}), stage_of("y", {3, 6}, {"a/1"})});
  EXPECT_EQ(shifted.kept_bytes, (3 + 2) * layer);
  EXPECT_EQ(shifted.loaded_bytes, layer);
  // Ranks change places: what each holds is another half.
  const std::vector<Stage> pair = {stage_of("x", {0, 6}, {"a/0", "a/1"})};
  EXPECT_EQ(moves(pair, pair).loaded_bytes, 0);
  EXPECT_EQ(moves(pair, {stage_of("x", {0, 6}, {"a/1", "a/0"})}).kept_bytes, 0);
  // Another degree, or other layers: all are loaded.
  EXPECT_EQ(moves(pair, {stage_of("x", {0, 6}, {"a/0"})}).loaded_bytes, 6 * layer);
  const WeightMoves apart = moves({stage_of("x", {0, 2}, {"a/0"})}, {stage_of("x", {4, 6}, {"a/0"})});
  EXPECT_EQ(apart.kept_bytes, 0);
  EXPECT_EQ(apart.loaded_bytes, 2 * layer);
}

// Layers 0 to 2 are of twice the FFN of the others.
TEST(Replan, WeightsThatMoveAreThoseOfTheLayersThemselves) {
  const Cluster cluster = cluster_with(R"({ name = "a", devices = ["wide*4"] })");
  const auto plan = [&](std::int64_t border) {
    ServePlan made = plan_of(cluster, {stage_of("x", {0, border}, {"a/0"}), stage_of("y", {border, 6}, {"a/1"})}, {});
    Architecture& arch = made.model.arch;
    arch.kinds.push_back(arch.kinds.front());
    arch.kinds.front().ffn *= 2;
    arch.kind_of_layer = {0, 0, 0, 1, 1, 1};
    return made;
  };
  const std::int64_t small = 2 * (4 * 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024), large = small + 2 * 3 * 1024 * 2816;
  const WeightMoves back = weight_moves(plan(4), plan(2));  // layers 2 and 3 go to the second device
  EXPECT_EQ(back.kept_bytes, 2 * large + 2 * small);
  EXPECT_EQ(back.loaded_bytes, large + small);
}

// A route that shares a stage with a lost route is planned again with it.
// Three alike hold two layers each; whichever order a planner names them in, who has layers keeps them.
TEST(Replan, DevicesKeepTheirPlacesWhereThatIsAsGood) {
  const std::vector<Stage> stages{stage_of("r0/s0", {0, 2}, {"m/0"}), stage_of("r0/s1", {2, 4}, {"m/1"}),
                                  stage_of("r0/s2", {4, 6}, {"m/2"})};
  ServePlan before = plan_of(cluster_with(R"({name = "m", devices = ["narrow*4"]})"), stages,
                             {{.id = "r0", .path = {{"r0/s0", {0, 2}}, {"r0/s1", {2, 4}}, {"r0/s2", {4, 6}}}}});
  before.unused = {{"m/3", "idle"}};
  ServePlan moved = before;
  moved.stages[0].devices = {"m/3"};
  moved.stages[1].devices = {"m/2"};
  moved.stages[2].devices = {"m/0"};
  moved.unused = {{"m/1", "idle"}};
  predict(moved, {});
  const ServePlan kept = keep_places(moved, before, {}, {});
  EXPECT_EQ(kept.stages, before.stages);
  EXPECT_EQ(kept.unused.at(0).device, "m/3");
  EXPECT_TRUE(verify(kept).empty());

  const ServePlan without = keep_places(moved, before, {"m/1"}, {});
  EXPECT_EQ(without.stages[0].devices, before.stages[0].devices);
  EXPECT_EQ(without.stages[1].devices, std::vector<std::string>{"m/3"});
  EXPECT_EQ(without.stages[2].devices, before.stages[2].devices);
}

// A place that is too large for it, or that would slow all down, it does not keep.
TEST(Replan, NoPlaceIsKeptAtThePlansCost) {
  const ServePlan before = plan_of(cluster_with(R"({name = "m", devices = ["wide*1", "narrow*1"]})"),
                                   {stage_of("r0/s0", {0, 3}, {"m/0"}), stage_of("r0/s1", {3, 6}, {"m/1"})},
                                   {{.id = "r0", .path = {{"r0/s0", {0, 3}}, {"r0/s1", {3, 6}}}}});
  ServePlan after = before;
  after.stages[0].layers = {0, 2};
  after.stages[0].devices = {"m/1"};
  after.stages[1].layers = {2, 6};
  after.stages[1].devices = {"m/0"};
  after.routes[0].path = {{"r0/s0", {0, 2}}, {"r0/s1", {2, 6}}};
  predict(after, {});
  EXPECT_EQ(keep_places(after, before, {}, {}).stages, after.stages);
}

TEST(Replan, RoutesThatShareAStageGoTogether) {
  const ServePlan before = routes_that_share();
  const ServeOutcome outcome = replan_serve(before, {"b-0/0"}, options_for(Objective::throughput));
  ASSERT_TRUE(outcome.plan) << outcome.reason;
  EXPECT_TRUE(verify(*outcome.plan).empty());
  for (const auto& route : outcome.plan->routes) EXPECT_TRUE(route.id != "r0" && route.id != "r1") << route.id;
}

}  // namespace
}  // namespace motley
