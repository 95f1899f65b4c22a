// The acceptance checks of the published objective: values computed by exhaustive search and by the public solver's own
// scoring, docs/figures/dtfm.md.
#include "motley/cost/published/dtfm.hpp"
#include "motley/cost/train/train_cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace motley {
namespace {

constexpr DtfmVolumes published_volumes{.gradient_bytes = 0.65e9, .activation_bytes = 0.47124922275543213e9};

Cluster example(const std::string& name) { return read_cluster(MOTLEY_SOURCE_DIR "/examples/dtfm/" + name + ".toml"); }

// Rank r works for stage r % 8 in replica r / 8: consecutive ranks form one pipeline.
std::vector<std::vector<int>> identity_map() {
  std::vector<std::vector<int>> grid(8, std::vector<int>(8));
  for (int rank = 0; rank < 64; ++rank)
    grid[static_cast<std::size_t>(rank % 8)][static_cast<std::size_t>(rank / 8)] = rank;
  return grid;
}

TEST(Dtfm, TheIdentityMapHasThePublishedObjective) {
  const struct {
    const char* name;
    double dp, pp;
  } cases[] = {{"one-data-centre", 2.912, 0.527799},
               {"spot", 7.28, 42.223930},
               {"two-organisations", 5.516857, 10.569983},
               {"us-regions", 8.342085, 26.459956},
               {"worldwide", 22.758424, 26.459956}};
  for (const auto& [name, dp, pp] : cases) {
    const DtfmPairs pairs = dtfm_pairs(example(name), published_volumes, 8);
    const DtfmAssignment best = dtfm_assign(pairs, identity_map());
    EXPECT_NEAR(best.dp_s, dp, 1e-6) << name;
    EXPECT_NEAR(best.pp_s, pp, 1e-6) << name;
    const DtfmAssignment written = dtfm_price(pairs, identity_map());
    EXPECT_NEAR(written.cost_s(), dp + pp, 2e-6) << name;
  }
}

// ---- small instances over the ten measured regions, solved by enumeration ----

DtfmPairs of_devices(const std::vector<std::string>& wanted, int replicas) {
  const Cluster cluster = example("uneven-a");
  ClusterDescription chosen = cluster.description;
  std::vector<MachineDescription> machines;
  for (const auto& name : wanted) {
    for (const auto& machine : chosen.machines)
      if (machine.site == name) machines.push_back(machine);
    machines.back().name += "-" + std::to_string(machines.size());
    machines.back().count = 1;
  }
  chosen.machines = machines;
  std::erase_if(chosen.links, [&](const NamedLink& link) {
    return std::any_of(link.between.begin(), link.between.end(), [&](const std::string& site) {
      return std::find(wanted.begin(), wanted.end(), site) == wanted.end();
    });
  });
  return dtfm_pairs(resolve(chosen, "chosen"), {.gradient_bytes = 0.65e9, .activation_bytes = 0.5e9}, replicas);
}

// All partitions into stages of `replicas` devices each: the first device that is free opens the next stage.
void partitions(int devices, std::size_t replicas, std::vector<std::vector<int>>& stages, std::vector<bool>& used,
                const std::function<void()>& visit) {
  const auto first = static_cast<int>(std::find(used.begin(), used.end(), false) - used.begin());
  if (first == devices && (stages.empty() || stages.back().size() == replicas)) return visit();
  if (stages.empty() || stages.back().size() == replicas) {
    stages.push_back({first});
    used[static_cast<std::size_t>(first)] = true;
    partitions(devices, replicas, stages, used, visit);
    used[static_cast<std::size_t>(first)] = false;
    stages.pop_back();
    return;
  }
  for (int device = stages.back().back() + 1; device < devices; ++device) {
    if (used[static_cast<std::size_t>(device)]) continue;
    stages.back().push_back(device);
    used[static_cast<std::size_t>(device)] = true;
    partitions(devices, replicas, stages, used, visit);
    used[static_cast<std::size_t>(device)] = false;
    stages.back().pop_back();
  }
}

DtfmAssignment least_of_all(const DtfmPairs& pairs, std::size_t replicas) {
  DtfmAssignment best{.dp_s = std::numeric_limits<double>::infinity()};
  std::vector<std::vector<int>> stages;
  std::vector<bool> used(static_cast<std::size_t>(pairs.devices));
  partitions(pairs.devices, replicas, stages, used, [&] {
    if (DtfmAssignment found = dtfm_assign(pairs, stages); found.cost_s() < best.cost_s()) best = found;
  });
  for (auto& stage : best.grid) std::sort(stage.begin(), stage.end());
  return best;
}

TEST(Dtfm, SmallInstancesHaveThePublishedOptimum) {
  const DtfmAssignment a1 = least_of_all(of_devices({"Oregon", "Oregon", "Virginia", "Virginia"}, 2), 2);
  EXPECT_NEAR(a1.cost_s(), 10.726278, 1e-6);
  EXPECT_NEAR(a1.dp_s, 6.716278, 1e-6);
  EXPECT_NEAR(a1.pp_s, 4.010000, 1e-6);
  EXPECT_EQ(a1.grid, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));

  const DtfmAssignment a2 = least_of_all(of_devices({"Oregon", "Virginia", "Tokyo", "London"}, 2), 2);
  EXPECT_NEAR(a2.cost_s(), 28.141319, 1e-6);
  EXPECT_NEAR(a2.dp_s, 12.652952, 1e-6);
  EXPECT_EQ(a2.grid.front().size() + a2.grid.back().size(), 4u);
  EXPECT_TRUE(a2.grid.front() == (std::vector<int>{0, 3}) || a2.grid.back() == (std::vector<int>{0, 3}));

  const DtfmAssignment a3 = least_of_all(of_devices({"Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London"}, 2), 2);
  EXPECT_NEAR(a3.cost_s(), 30.431006, 1e-6);
  EXPECT_NEAR(a3.dp_s, 6.716278, 1e-6);
  EXPECT_EQ(a3.grid[1], (std::vector<int>{0, 1}));

  const DtfmAssignment a4 = least_of_all(
      of_devices({"Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland"}, 4), 4);
  EXPECT_NEAR(a4.cost_s(), 26.131950, 1e-6);
  EXPECT_NEAR(a4.dp_s, 18.676542, 1e-6);
  EXPECT_TRUE(a4.grid[0] == (std::vector<int>{0, 3, 5, 7}) || a4.grid[1] == (std::vector<int>{0, 3, 5, 7}));
}

TEST(Dtfm, RivalsOfTheFirstInstanceByHand) {
  const DtfmPairs pairs = of_devices({"Oregon", "Oregon", "Virginia", "Virginia"}, 2);
  const DtfmAssignment apart = dtfm_assign(pairs, {{0, 1}, {2, 3}});
  EXPECT_NEAR(apart.dp_s, 2.610, 1e-9);  // 2 (0.005 + 0.65 x 8 / (2 x 2))
  EXPECT_NEAR(apart.pp_s, 2 * (0.067 + 0.5 * 8 / 0.79), 1e-9);
}

TEST(Dtfm, PairsAreTheMeanOfBothDirectionsAndStagesRoundUp) {
  const Cluster cluster = resolve(read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
machine = [{name = "a", devices = ["A100"]}, {name = "b", devices = ["A100"]}]
[network.matrix]
latency_ms = [[0, 100], [300, 0]]
bandwidth_gbit_s = [[0, 32], [16, 0]]
)",
                                                                      "c"),
                                                           "c"),
                                  "c");
  const DtfmPairs pairs = dtfm_pairs(cluster, {.gradient_bytes = 6e9, .activation_bytes = 3e9}, 2);
  for (const std::size_t at : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_DOUBLE_EQ(pairs.latency_s[at], 0.2);
    EXPECT_DOUBLE_EQ(pairs.s_per_byte[at], 2 / 6e9);  // 4 and 2 GB/s
    EXPECT_DOUBLE_EQ(pairs.sync_s[at], 2 * (0.2 + 3e9 * 2 / 6e9));
    EXPECT_DOUBLE_EQ(pairs.hop_s[at], 2 * (0.2 + 3e9 * 2 / 6e9));
  }
  const Architecture arch = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-1.3b").arch;
  ASSERT_EQ(arch.layers, 24);
  Training training;
  training.states = StateBytes{};
  training.sequence_length = training.global_batch = 8;
  EXPECT_EQ(dtfm_volumes({.form = "dtfm"}, arch, training, 7, 1).gradient_bytes,
            4.0 * 2 * static_cast<double>(block_parameters(arch, 0)));
}

// ---- properties ----

std::vector<std::vector<int>> random_grid(std::mt19937& random) {
  std::vector<int> devices(64);
  std::iota(devices.begin(), devices.end(), 0);
  std::shuffle(devices.begin(), devices.end(), random);
  std::vector<std::vector<int>> grid(8);
  for (std::size_t i = 0; i < 64; ++i) grid[i % 8].push_back(devices[i]);
  return grid;
}

TEST(Dtfm, NamesOfStagesPipelinesAndLikeDevicesDoNotMatter) {
  std::mt19937 random(1);
  const DtfmPairs pairs = dtfm_pairs(example("worldwide"), published_volumes, 8);
  for (int round = 0; round < 5; ++round) {
    const auto grid = random_grid(random);
    const double cost = dtfm_assign(pairs, grid).cost_s();
    auto changed = grid;
    std::shuffle(changed.begin(), changed.end(), random);
    for (auto& stage : changed) {
      std::shuffle(stage.begin(), stage.end(), random);
      for (int& device : stage) device = device / 8 * 8 + (device + 3) % 8;  // another device of the same region
    }
    EXPECT_NEAR(dtfm_assign(pairs, changed).cost_s(), cost, 1e-9);
    auto turned = grid;
    std::reverse(turned.begin(), turned.end());
    for (auto& stage : turned) std::rotate(stage.begin(), stage.begin() + 1, stage.end());
    EXPECT_NEAR(dtfm_price(pairs, turned).cost_s(), dtfm_price(pairs, grid).cost_s(), 1e-9);
  }
}

TEST(Dtfm, FasterLinksScaleTheCost) {
  Cluster cluster = example("us-regions");
  const double cost = dtfm_assign(dtfm_pairs(cluster, published_volumes, 8), identity_map()).cost_s();
  const auto faster = [](LinkSpeed& speed) {
    speed.latency_s /= 4;
    speed.bandwidth_bytes_per_s *= 4;
  };
  faster(*cluster.description.network.within_site);
  for (auto& link : cluster.description.links) faster(link.speed);
  EXPECT_NEAR(dtfm_assign(dtfm_pairs(cluster, published_volumes, 8), identity_map()).cost_s(), cost / 4, 1e-9);
}

TEST(Dtfm, ReadingsOfThePipelinesAreOrdered) {
  std::mt19937 random(2);
  const DtfmPairs pairs = dtfm_pairs(example("uneven-a"), published_volumes, 8);
  for (int round = 0; round < 5; ++round) {
    const DtfmAssignment found = dtfm_assign(pairs, random_grid(random));
    const double worst = dtfm_worst_pipeline_s(pairs, found.grid);
    EXPECT_NEAR(dtfm_price(pairs, found.grid).cost_s(), found.cost_s(), 1e-9);
    EXPECT_GE(found.pp_s, worst - 1e-9);
    double hop = 0;
    for (std::size_t s = 0; s + 1 < 8; ++s) {
      const std::vector<std::vector<int>> two = {found.grid[s], found.grid[s + 1]};
      hop = std::max(hop, dtfm_worst_pipeline_s(pairs, two));
    }
    EXPECT_GE(worst, hop);
    EXPECT_NEAR(dtfm_pipelined_s(pairs, published_volumes.activation_bytes, found.grid, 1), worst, 1e-9);
    EXPECT_LT(dtfm_pipelined_s(pairs, published_volumes.activation_bytes, found.grid, 64), worst);
  }
}

// ---- plans ----

TEST(Dtfm, PlansArePricedAsWritten) {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/opt-1.3b");
  plan.cluster = example("worldwide");
  plan.workload = read_workload(MOTLEY_SOURCE_DIR "/examples/dtfm/workload.toml");
  for (int r = 0; r < 8; ++r) {
    TrainReplica replica{.share = 1.0 / 8, .micro_batches = 128, .stages = {}};
    for (int s = 0; s < 8; ++s)
      replica.stages.push_back({.layers = {3 * s, 3 * s + 3},
                                .devices = {plan.cluster.devices[static_cast<std::size_t>(8 * r + s)].name},
                                .strategies = {{.layers = {3 * s, 3 * s + 3}, .recompute = true}}});
    plan.replicas.push_back(replica);
  }
  EXPECT_TRUE(verify(plan).empty());
  const CostOptions options{.form = "dtfm",
                            .settings = {{"dtfm.gradient_bytes", published_volumes.gradient_bytes},
                                         {"dtfm.activation_bytes", published_volumes.activation_bytes}}};
  const TrainCost cost = price_train(plan, options);
  check_consistent(cost.tree);
  EXPECT_NEAR(cost.iteration_s, 49.218380, 1e-6);
  ASSERT_EQ(cost.tree.children.size(), 2u);
  EXPECT_EQ(cost.tree.children[0].name, "dp");
  EXPECT_NEAR(cost.tree.children[0].value, 22.758424, 1e-6);
  EXPECT_EQ(cost.tree.children[1].name, "pp");

  // By default: 3 blocks' gradients in fp16; 128 sequences of 2048 hidden states of 2048 x 2 bytes.
  const DtfmVolumes volumes = dtfm_volumes({.form = "dtfm"}, plan.model.arch, *plan.workload.training, 8, 8);
  EXPECT_EQ(volumes.gradient_bytes, 3.0 * 2 * static_cast<double>(block_parameters(plan.model.arch, 0)));
  EXPECT_EQ(volumes.activation_bytes, 128.0 * 2048 * 2048 * 2);

  EXPECT_THROW(price_train(plan, {.form = "dtfm", .settings = {{"dtfm.bytes", 1}}}), Error);
  EXPECT_THROW(price_train(plan, {.form = "none"}), Error);
  std::swap(plan.replicas[0].stages[0].devices, plan.replicas[1].stages[0].devices);
  EXPECT_GT(price_train(plan, options).iteration_s, 49.3);  // the pipelines as written, not the best ones
  plan.replicas[0].stages[0].devices.push_back("x");
  EXPECT_THROW(price_train(plan, options), Error);
}

}  // namespace
}  // namespace motley
