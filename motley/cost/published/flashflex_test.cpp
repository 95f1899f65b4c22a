// Figures computed from the published formulas with 2^30 and 2^40 as units, docs/figures/flashflex.md.
#include "motley/cost/published/flashflex.hpp"
#include "motley/cost/train/train_cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace motley {
namespace {

// Machines of the named types; 5 GiB/s between them.
Cluster machines(const std::vector<std::string>& devices) {
  std::string text = "format = \"motley.cluster/1\"\nname = \"c\"\n";
  const std::map<std::string, std::pair<const char*, int>> types = {
      {"A100", {"312", 200}}, {"RTX 4090", {"165.2", 2}}, {"RTX 3080 Ti", {"56.9", 20}}, {"RTX 3090", {"80", 2}}};
  std::map<std::string, int> used;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string type = devices[i].substr(0, devices[i].find('*'));
    used[type] = 1;
    text += "[[machine]]\nname = \"m" + std::to_string(i) + "\"\ndevices = [\"" + devices[i] +
            "\"]\nlink = { latency = \"0 ms\", bandwidth = \"" + std::to_string(types.at(type).second) + " GiB/s\" }\n";
  }
  for (const auto& [type, count] : used)
    text += "[[device_type]]\nname = \"" + type + "\"\nflops = { fp16 = \"" + types.at(type).first + " TFLOP/s\" }\n";
  text += "[network]\nwithin_site = { latency = \"0 ms\", bandwidth = \"5 GiB/s\" }\n";
  return resolve(read<ClusterDescription>(parse_toml(text, "cluster"), "cluster"), "cluster");
}

Architecture seven_billion() { return read_model(MOTLEY_SOURCE_DIR "/data/models/llama-2-7b").arch; }

Training job() { return *read_workload(MOTLEY_SOURCE_DIR "/examples/flashflex/workload.toml").training; }

FlashflexForm form(const Cluster& cluster, std::map<std::string, double> settings = {}) {
  return {{.form = "flashflex", .settings = std::move(settings)}, cluster, seven_billion(), job(), 1};
}

TEST(Flashflex, LayersAndCollectives) {
  const Cluster cluster = machines({"A100*4", "RTX 4090*2"});
  const FlashflexForm published = form(cluster);
  EXPECT_NEAR(published.compute_s({0}), 22.7293e-3, 5e-8);
  EXPECT_NEAR(published.compute_s({0, 1, 2, 3}), 5.6823e-3, 5e-8);
  EXPECT_NEAR(published.compute_s({4}), 42.9271e-3, 5e-8);
  EXPECT_NEAR(form(cluster, {{"flashflex.decimal", 1}}).compute_s({0}), 24.9912e-3, 5e-8);
  EXPECT_NEAR(form(cluster, {{"flashflex.recompute", 0}}).compute_s({0}), 0.75 * 22.7293e-3, 5e-8);

  EXPECT_EQ(published.collective_s({0}), 0);
  EXPECT_NEAR(published.collective_s({0, 1}), 0.9375e-3, 1e-12);
  EXPECT_NEAR(published.collective_s({0, 1, 2, 3}), 1.40625e-3, 1e-12);
  EXPECT_NEAR(published.collective_s({4, 5}), 93.75e-3, 1e-12);
}

TEST(Flashflex, Hops) {
  const Cluster cluster = machines({"A100*4", "RTX 4090*2"});
  EXPECT_NEAR(form(cluster).hop_s({0}, {4}), 12.5e-3, 1e-12);
  EXPECT_NEAR(form(cluster).hop_s({0}, {4, 5}), 28.125e-3, 1e-12);
}

TEST(Flashflex, HopsTakeTheDirectionOfTheirLink) {
  Cluster cluster = machines({"A100", "RTX 4090"});
  const double bytes = 12.5e-3 / 2 * 5 * 1024 * 1024 * 1024;  // of the hop above
  cluster.description.network.within_site->bandwidth_bytes_per_s = 0;
  cluster.description.links = {
      {.between = {"m0", "m1"}, .speed = {.bandwidth_up_bytes_per_s = 4e9, .bandwidth_down_bytes_per_s = 2e9}}};
  EXPECT_NEAR(form(cluster).hop_s({0}, {1}), 2 * bytes / 4e9, 1e-12);
  EXPECT_NEAR(form(cluster).hop_s({1}, {0}), 2 * bytes / 2e9, 1e-12);
}

TEST(Flashflex, PipelinesInLockstepAndAsFlowShops) {
  const std::vector<double> stages = {3, 1, 2};
  EXPECT_EQ(lockstep_s(stages, 4), 16);
  EXPECT_EQ(flow_shop_s(stages, 4), 15);
  EXPECT_EQ(lockstep_s(stages, 1), 6);
  EXPECT_EQ(lockstep_s(stages, 2), 3 + 3 + 2 + 2);
  const std::vector<double> equal = {2, 2, 2, 2, 2};
  EXPECT_EQ(lockstep_s(equal, 7), 22);
  EXPECT_EQ(flow_shop_s(equal, 7), 22);
}

// The sum over slots, by definition.
TEST(Flashflex, LockstepEqualsItsDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int count = 1 + round % 6, m = 1 + static_cast<int>(random() % 9);
    std::vector<double> stages;
    for (int s = 0; s < count; ++s) stages.push_back(static_cast<double>(random() % 10));
    double sum = 0;
    for (int slot = 0; slot <= m + count - 2; ++slot) {
      double slowest = 0;
      for (int s = 0; s < count; ++s)
        if (slot - s >= 0 && slot - s < m) slowest = std::max(slowest, stages[static_cast<std::size_t>(s)]);
      sum += slowest;
    }
    EXPECT_EQ(lockstep_s(stages, m), sum);
  }
}

TEST(Flashflex, TheBestCutOfTwoUnlikeStages) {
  const Cluster cluster = machines({"A100", "RTX 4090"});
  const FlashflexForm published = form(cluster);
  int best = 0;
  double least = 1e9;
  for (int cut = 1; cut < 32; ++cut) {
    const std::vector<double> stages = {cut * published.layer_s({0}) + published.hop_s({0}, {1}),
                                        (32 - cut) * published.layer_s({1})};
    if (const double time = lockstep_s(stages, 8); time < least) {
      least = time;
      best = cut;
      if (cut == 21) {
        EXPECT_NEAR(stages[0], 0.48982, 5e-6);
        EXPECT_NEAR(stages[1], 0.47220, 5e-6);
      }
    }
  }
  EXPECT_EQ(best, 21);
  EXPECT_NEAR(least, 4.39073, 5e-6);
  EXPECT_NEAR(published.step_s(least, 0), 7.90331, 5e-6);
}

TEST(Flashflex, SyncSetsAreThePaddedColumns) {
  const FlashflexGroup a = {0}, b = {1, 2}, c = {3, 4, 5, 6}, d = {1, 2, 3};
  const std::vector<const FlashflexGroup*> owners = {&a, &b, &c};
  EXPECT_EQ(flashflex_sync_sets(owners), (std::vector<std::vector<int>>{{0, 1, 3}, {0, 1, 4}, {0, 2, 5}, {0, 2, 6}}));
  const std::vector<const FlashflexGroup*> odd = {&b, &d};
  EXPECT_THROW(flashflex_sync_sets(odd), Error);
}

TEST(Flashflex, SyncOfUnlikeDegrees) {
  const Cluster cluster = machines({"A100*4", "RTX 4090*2"});
  const FlashflexGroup a = {0, 1, 2, 3}, b = {4, 5};
  const std::vector<const FlashflexGroup*> owners = {&a, &b};
  EXPECT_NEAR(32 * form(cluster).sync_s(owners), 2.4, 1e-9);
  const std::vector<const FlashflexGroup*> one = {&a};
  EXPECT_EQ(form(cluster).sync_s(one), 0);
}

TEST(Flashflex, MemoryIsThatOfHalfPrecisionAdam) {
  const Cluster cluster = machines({"A100*2", "RTX 4090"});
  const FlashflexForm published = form(cluster);
  const double hidden = 4096, block = 12 * hidden * hidden, tokens = 4096;
  EXPECT_NEAR(published.memory_bytes({0, 1}, 3, {}),
              8 * block * 3 / 2 + 2 * (3 * tokens * hidden / 2 + 2 * tokens * hidden), 1);
  EXPECT_NEAR(published.memory_bytes({2}, 1, {.first = true, .last = true}),
              8 * (block + hidden + 32000 * hidden + hidden * (32000 + 4096)) + 2 * 3 * tokens * hidden, 1);
  const std::int64_t most = published.most_layers({2}, {.first = true});
  EXPECT_LE(published.memory_bytes({2}, most, {.first = true}), 24.0 * (1 << 30));
  EXPECT_GT(published.memory_bytes({2}, most + 1, {.first = true}), 24.0 * (1 << 30));
}

// ---- plans ----

TrainPlan plan_of(const Cluster& cluster, const std::vector<std::vector<std::pair<FlashflexGroup, int>>>& replicas) {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/llama-2-7b");
  plan.cluster = cluster;
  plan.workload = read_workload(MOTLEY_SOURCE_DIR "/examples/flashflex/workload.toml");
  const auto count = static_cast<double>(replicas.size());
  for (const auto& stages : replicas) {
    TrainReplica replica{
        .share = 1 / count, .micro_batches = static_cast<std::int64_t>(480 / replicas.size()), .stages = {}};
    std::int64_t layer = 0;
    for (const auto& [group, layers] : stages) {
      TrainStage stage{.layers = {layer, layer + layers}, .devices = {}, .strategies = {}};
      for (const int device : group) stage.devices.push_back(cluster.devices[static_cast<std::size_t>(device)].name);
      stage.strategies = {{.layers = stage.layers, .tp = static_cast<std::int64_t>(group.size()), .recompute = true}};
      layer += layers;
      replica.stages.push_back(std::move(stage));
    }
    plan.replicas.push_back(std::move(replica));
  }
  return plan;
}

// Setting A's launch script: 4 replicas of 10 single devices, 4 layers on an RTX 4090 and 2 on the others. 0 to 7 are
// 3080 Ti, 8 to 15 are 3090, 16 to 39 are 4090 in three machines.
TrainPlan authors_plan(double gib_per_s) {
  Cluster cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/flashflex/a.toml");
  cluster.description.network.within_site->bandwidth_bytes_per_s = gib_per_s * (1 << 30);
  std::vector<std::vector<std::pair<FlashflexGroup, int>>> replicas;
  for (int r = 0; r < 4; ++r) {
    const auto strong = [&](int i) { return FlashflexGroup{16 + 6 * r + i}; };
    replicas.push_back({{strong(0), 4},
                        {strong(1), 4},
                        {{2 * r}, 2},
                        {{2 * r + 1}, 2},
                        {strong(2), 4},
                        {strong(3), 4},
                        {strong(4), 4},
                        {strong(5), 4},
                        {{8 + 2 * r}, 2},
                        {{9 + 2 * r}, 2}});
  }
  return plan_of(cluster, replicas);
}

TEST(Flashflex, TheAuthorsPlanHasTheUtilisationThatTheFormulasGive) {
  for (const auto& [gib_per_s, percent] : std::map<double, double>{{0.5, 18.5}, {1, 24.7}, {5, 32.7}, {25, 34.6}}) {
    const TrainCost cost = price_train(authors_plan(gib_per_s), {.form = "flashflex"});
    check_consistent(cost.tree);
    EXPECT_NEAR(100 * cost.mfu, percent, 0.05) << gib_per_s;
    EXPECT_NEAR(cost.tokens_per_s * cost.iteration_s, 480 * 4096, 1e-3);
  }
  EXPECT_TRUE(verify(authors_plan(5)).empty());
}

TEST(Flashflex, FasterDevicesAndLinksScaleTheStep) {
  TrainPlan plan = authors_plan(5);
  const double step = price_train(plan, {.form = "flashflex"}).iteration_s;
  for (auto& type : plan.cluster.types)
    for (auto& [name, rate] : type.flop_per_s) rate *= 3;
  for (auto& machine : plan.cluster.description.machines) machine.link->bandwidth_bytes_per_s *= 3;
  plan.cluster.description.network.within_site->bandwidth_bytes_per_s *= 3;
  EXPECT_NEAR(price_train(plan, {.form = "flashflex"}).iteration_s, step / 3, 1e-9 * step);
}

TEST(Flashflex, LikeDevicesMayChangePlaces) {
  const Cluster cluster = machines({"RTX 4090*2", "RTX 4090*2", "A100"});
  const double step =
      price_train(plan_of(cluster, {{{{0, 1}, 8}, {{2}, 8}, {{4}, 16}}}), {.form = "flashflex"}).iteration_s;
  EXPECT_EQ(price_train(plan_of(cluster, {{{{3, 2}, 8}, {{1}, 8}, {{4}, 16}}}), {.form = "flashflex"}).iteration_s,
            step);
}

TEST(Flashflex, WhatTheFormCannotExpressIsRefused) {
  const Cluster cluster = machines({"RTX 4090*2", "A100*3"});
  TrainPlan plan = plan_of(cluster, {{{{0, 1}, 32}}, {{{2, 3, 4}, 32}}});
  EXPECT_THROW(price_train(plan, {.form = "flashflex"}), Error);  // degrees 2 and 3
  plan = plan_of(cluster, {{{{0, 1}, 32}}});
  plan.replicas[0].stages[0].strategies[0] = {.layers = {0, 32}, .tp = 1, .dp = 2};
  EXPECT_THROW(price_train(plan, {.form = "flashflex"}), Error);
}

}  // namespace
}  // namespace motley
