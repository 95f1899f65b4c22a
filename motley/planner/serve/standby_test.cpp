#include "motley/planner/serve/standby.hpp"

#include <gtest/gtest.h>

#include "motley/cost/form/cases_test.hpp"
#include "motley/planner/serve/replan.hpp"

namespace motley {
namespace {

// Six layers of about 26 MB in fp16 each.
Model six_layers() { return llama_of(1024, 6, 8, 8, 2816, 4000); }

Cluster three_machines(const std::string& memory, const std::string& machines = "count = 3\ndevices = [\"core\"]") {
  return cluster_of(R"(format = "motley.cluster/1"
[[machine]]
name = "m"
)" + machines + R"(
[[device_type]]
name = "core"
vendor = "nvidia"
memory = ")" + memory +
                    R"("
memory_bandwidth = "400 GB/s"
flops = { fp16 = "40 TFLOP/s" }
reserve = "8 MiB"
[network]
within_machine = { latency = "10 us", bandwidth = "10 GB/s" }
within_site = { latency = "10 us", bandwidth = "10 GB/s" }
)");
}

ServeOptions options_with(std::optional<std::int64_t> standby_bytes) {
  return {.objective = Objective::throughput,
          .step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16},
          .deadline_s = 2,
          .use_devices = UseDevices::all,
          .replication = Replication::one_pipeline,
          .front = Front::skip,
          .max_batch = 4,
          .roles = StageRoles::both,
          .standby_bytes = standby_bytes};
}

ServePlan planned_over(const Cluster& cluster, std::optional<std::int64_t> standby_bytes) {
  ServeOutcome outcome = plan_serve(cluster, six_layers(), workload_of(60, 20), options_with(standby_bytes));
  EXPECT_TRUE(outcome.plan) << outcome.reason;
  EXPECT_TRUE(verify(*outcome.plan).empty());
  return *std::move(outcome.plan);
}

std::int64_t copies(const ServePlan& plan) {
  std::int64_t layers = 0;
  for (const Stage& stage : plan.stages)
    for (const StandbyWeights& standby : stage.standby_weights) layers += standby.layers.size();
  return layers;
}

TEST(Standby, StagesGrowToBothSidesAsFarAsTheyHaveRoom) {
  ServePlan plan = planned_over(three_machines("1 GiB"), {});
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(copies(plan), 0);
  EXPECT_EQ(standby_bytes_of(plan), std::nullopt);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto first = static_cast<std::int64_t>(2 * i);
    plan.stages[i].layers = plan.routes[0].path[i].layers = {first, first + 2};
  }
  const Stage middle = plan.stages[1];
  fill_standby(plan);
  EXPECT_TRUE(verify(plan).empty());
  EXPECT_EQ(plan.stages[0].standby_weights, (std::vector<StandbyWeights>{{{2, 6}}}));
  EXPECT_EQ(plan.stages[1].standby_weights, (std::vector<StandbyWeights>{{{0, 2}}, {{4, 6}}}));
  EXPECT_EQ(plan.stages[2].standby_weights, (std::vector<StandbyWeights>{{{0, 4}}}));

  // Room for one layer in the middle, and none at the ends.
  const TierMemory all = stage_memory(plan, plan.stages[1])[0].device;
  Stage with = middle;
  with.standby_weights = {{{1, 2}}};
  const std::int64_t one = stage_memory(plan, with)[0].device.total();
  for (DeviceType& type : plan.cluster.types) type.memory_bytes = one;
  for (const std::size_t end : {std::size_t{0}, std::size_t{2}}) plan.stages[end].kv_tokens *= 100;
  EXPECT_LT(one, all.total());
  fill_standby(plan);
  EXPECT_EQ(plan.stages[1].standby_weights, (std::vector<StandbyWeights>{{{1, 2}}}));
  EXPECT_TRUE(plan.stages[0].standby_weights.empty());
}

std::int64_t copies_on_hosts(const Stage& stage) {
  std::int64_t layers = 0;
  for (const StandbyWeights& standby : stage.standby_weights)
    layers += standby.tier == StandbyTier::host ? standby.layers.size() : 0;
  return layers;
}

// Of 70 MiB a tenth is left to other programs, which makes room for two layers; devices have room for one copy.
TEST(Standby, WhatDevicesHaveNoRoomForLiesOnTheirHosts) {
  const ServePlan planned = planned_over(three_machines("1 GiB"), {});
  ASSERT_EQ(planned.stages.size(), 3u);
  const auto filled = [&](const std::string& machines) {
    ServePlan plan = planned;
    plan.cluster = three_machines("1 GiB", machines);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto first = static_cast<std::int64_t>(2 * i);
      plan.stages[i].layers = plan.routes[0].path[i].layers = {first, first + 2};
      plan.stages[i].devices = {plan.cluster.devices[i].name};
    }
    Stage with = plan.stages[1];
    with.standby_weights = {{{1, 2}}};
    const std::int64_t one = stage_memory(plan, with)[0].device.total();
    for (DeviceType& type : plan.cluster.types) type.memory_bytes = one;
    for (std::size_t i = 0; i < plan.stages.size(); ++i) plan.stages[i].kv_tokens = plan.stages[1].kv_tokens;
    fill_standby(plan);
    return plan;
  };
  const ServePlan apart = filled("count = 3\ndevices = [\"core\"]\nhost_memory = \"70 MiB\"");
  const Stage& middle = apart.stages[1];
  EXPECT_EQ(middle.standby_weights,
            (std::vector<StandbyWeights>{{{0, 1}, StandbyTier::host}, {{1, 2}}, {{4, 5}, StandbyTier::host}}));
  EXPECT_GT(stage_memory(apart, middle)[0].host.standby, 0);
  EXPECT_TRUE(verify(apart).empty());
  const ServePlan together = filled("devices = [\"core*3\"]\nhost_memory = \"70 MiB\"");
  std::int64_t all = 0;
  for (const Stage& stage : together.stages) all += copies_on_hosts(stage);
  EXPECT_EQ(all, 2) << "they share the memory of their host";
  const ServePlan none = filled("count = 3\ndevices = [\"core\"]");
  for (const Stage& stage : none.stages) EXPECT_EQ(copies_on_hosts(stage), 0);
}

// What is set aside is taken from keys and values, and nothing is set aside where the model would not fit any more.
TEST(Standby, MemoryIsSetAside) {
  ServeOptions options = options_with({});
  options.max_batch = 1024;
  const Cluster cluster = three_machines("150 MiB");
  const auto plan = [&](std::optional<std::int64_t> bytes) {
    options.standby_bytes = bytes;
    ServeOutcome outcome = plan_serve(cluster, six_layers(), workload_of(60, 20), options);
    EXPECT_TRUE(outcome.plan && verify(*outcome.plan).empty()) << outcome.reason;
    return *std::move(outcome.plan);
  };
  const ServePlan without = plan({}), left = plan(0), aside = plan(std::int64_t{60} << 20),
                  all = plan(std::int64_t{1} << 40);
  EXPECT_EQ(without.stages, left.stages) << "keys and values have it all";
  EXPECT_EQ(all.stages, left.stages) << "nothing fits with that much";
  EXPECT_GE(copies(aside), 3);
  EXPECT_LT(aside.stages[0].kv_tokens, without.stages[0].kv_tokens);
  EXPECT_EQ(aside.cluster, cluster);
}

// After a loss devices are planned with as those that hold the copies.
TEST(Standby, ALossLoadsLess) {
  const Cluster cluster = three_machines("400 MiB");
  const ServePlan plain = planned_over(cluster, {}), standby = planned_over(cluster, 0);
  const auto loaded = [](const ServePlan& before) {
    ServeOptions options = options_with({});
    options.use_devices = UseDevices::may_idle;
    const ServeOutcome outcome = replan_serve(before, {"m-1/0"}, options);
    EXPECT_TRUE(outcome.plan && verify(*outcome.plan).empty()) << outcome.reason;
    return weight_moves(before, *outcome.plan).loaded_bytes;
  };
  EXPECT_GT(loaded(plain), 0);
  EXPECT_EQ(loaded(standby), 0);
}

// Devices change places without their copies, which are chosen again.
TEST(Standby, PlacesAreKeptAsWithout) {
  const ServePlan before = planned_over(three_machines("1 GiB"), 0);
  ServePlan moved = before;
  std::swap(moved.stages[0].devices, moved.stages[2].devices);
  EXPECT_EQ(keep_places(moved, before, {}, {}).stages, moved.stages) << "all hold all";
  for (Stage& stage : moved.stages) stage.standby_weights.clear();
  ServePlan bare = before;
  for (Stage& stage : bare.stages) stage.standby_weights.clear();
  EXPECT_EQ(keep_places(moved, bare, {}, {}).stages, bare.stages);
}

}  // namespace
}  // namespace motley
