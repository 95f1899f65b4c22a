#include "motley/planner/collective/plan_collective.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "motley/base/error.hpp"
#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/collective_price.hpp"
#include "motley/cost/collective/genmodel_cases_test.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/planner/collective/factors.hpp"
#include "motley/planner/collective/networks_test.hpp"
#include "motley/planner/collective/share_tree.hpp"

namespace motley {
namespace {

CollectiveNetwork p10_switch(int ranks) {
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < ranks; ++rank)
    add_rank(network, 0, "r" + std::to_string(rank), link_of(10e9, 2.5e-5), {9, 5e-11}, {1e-10, 1e-10});
  return network;
}

// Racks below a core, hosts below racks.
CollectiveNetwork racks(int count, int hosts, double host_bits_per_s, double uplink_bits_per_s) {
  CollectiveNetwork network = empty_network("core");
  for (int r = 0; r < count; ++r) {
    const int rack =
        add_switch(network, 0, "rack" + std::to_string(r), link_of(uplink_bits_per_s, 1e-5), {9, 5e-11}, {9, 5e-11});
    for (int host = 0; host < hosts; ++host)
      add_rank(network, rack, "h" + std::to_string(r * hosts + host), link_of(host_bits_per_s, 2.5e-5), {9, 5e-11},
               {1e-10, 1e-10});
  }
  return network;
}

ClusterDescription described(const std::string& text) {
  return read<ClusterDescription>(parse_toml("format = \"motley.cluster/1\"\nname = \"test\"\n" + text, "test"),
                                  "test");
}
Cluster cluster_of(const std::string& text) { return resolve(described(text), "test"); }

void expect_sound(const CollectiveNetwork& network, const CollectiveAnswer& answer, const std::string& what) {
  const auto wrong = check_program(answer.program);
  ASSERT_TRUE(wrong.empty()) << what << ", " << answer.program.layout << ": " << wrong[0].place << " " << wrong[0].what;
  const auto cost = price_rounds(network, rounds_of(answer.program), answer.program.chunks);
  EXPECT_NEAR(cost.time_s, answer.predicted.time_s, 1e-9 * cost.time_s) << what << ", " << answer.program.layout;
  EXPECT_NEAR(cost.pipelined_s(answer.program.chunks, {}), answer.predicted.pipelined_s, 1e-9 * cost.time_s)
      << what << ", " << answer.program.layout;
}

TEST(PlanCollective, FactorsOnOneSwitch) {
  const std::vector<std::pair<int, std::vector<int>>> best = {{4, {4}},     {9, {9}},        {10, {5, 2}}, {12, {6, 2}},
                                                              {15, {5, 3}}, {16, {8, 2}},    {24, {8, 3}}, {32, {8, 4}},
                                                              {64, {8, 8}}, {384, {8, 8, 6}}};
  for (const auto& [ranks, factors] : best) EXPECT_EQ(best_factors(ranks, p10, 4e8).factors, factors) << ranks;
  EXPECT_EQ(best_factors(64, p10, 4096).factors, (std::vector<int>{64}));
  EXPECT_EQ(best_factors(384, p10, 4096).factors, (std::vector<int>{12, 32}));
  // The planner with the same objective is at least as good.
  for (const int ranks : {4, 9, 10, 12, 16, 24}) {
    const auto answer = plan_collective(p10_switch(ranks), CollectiveOperation::all_reduce, vector_bytes,
                                        {.objective = CollectiveObjective::rounds});
    expect_sound(p10_switch(ranks), answer, "switch");
    EXPECT_LE(answer.predicted.time_s, best_factors(ranks, p10, 4e8).seconds * (1 + 1e-6)) << answer.program.layout;
    EXPECT_EQ(answer.program.chunks, 1);
  }
}

TEST(PlanCollective, AStarWithSlowRanks) {
  const auto network = star({10e9, 10e9, 10e9, 10e9, 10e9, 10e9, 1e9, 1e9});
  const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
  expect_sound(network, answer, "star");
  EXPECT_NEAR(answer.predicted.limit_s, 3.2, 1e-6);
  EXPECT_LE(answer.predicted.steady_s, 3.2 * 1.01);
  for (const int slow : {6, 7})
    for (const auto& step : answer.program.steps[static_cast<std::size_t>(slow)])
      EXPECT_NE(step.kind, CollectiveStepKind::reduce);
}

TEST(PlanCollective, TwoSites) {
  CollectiveNetwork network = empty_network("wide area");
  for (int s = 0; s < 2; ++s) {
    const int site = add_switch(network, 0, "site" + std::to_string(s), link_of(1e9, 10e-3), {}, {});
    for (int host = 0; host < 8; ++host) add_rank(network, site, "h", link_of(10e9), {}, {});
  }
  const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
  expect_sound(network, answer, "sites");
  EXPECT_NEAR(answer.predicted.limit_s, 3.2, 1e-6);
  EXPECT_LE(answer.predicted.steady_s, 3.2 * 1.001);
  std::vector<int> order(16);
  std::iota(order.begin(), order.end(), 0);
  const auto ring = price_rounds(network, rounds_of(ring_program({.operation = CollectiveOperation::all_reduce,
                                                                  .ranks = 16,
                                                                  .root = 0,
                                                                  .bytes = vector_bytes,
                                                                  .alignment = 16},
                                                                 order)));
  EXPECT_NEAR(ring.steady_s, 6.0, 1e-3);
}

TEST(PlanCollective, SteadyLoadIsAtTheLimit) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const auto network = trial % 2
                             ? random_tree(random, 2 + trial % 13, 3, trial % 4 == 1 ? Ways::alike : Ways::different)
                             : random_star(random, 2 + trial % 13);
    const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
    expect_sound(network, answer, "random " + std::to_string(trial));
    EXPECT_LE(answer.predicted.steady_s, answer.predicted.limit_s * 1.01) << trial << " " << answer.program.layout;
    EXPECT_GE(answer.predicted.steady_s, answer.predicted.limit_s * (1 - 1e-5));
  }
}

TEST(PlanCollective, AllOperations) {
  std::mt19937_64 random(12);
  for (const auto operation : {CollectiveOperation::all_reduce, CollectiveOperation::reduce_scatter,
                               CollectiveOperation::all_gather, CollectiveOperation::broadcast})
    for (int trial = 0; trial < 12; ++trial) {
      const auto network = random_tree(random, 1 + trial, 3, Ways::alike);
      const std::int64_t whole = 64 * network.ranks() * (trial % 2 ? 100'003 : 16);
      const auto answer = plan_collective(network, operation, whole, {.root = trial % network.ranks()});
      expect_sound(network, answer, std::string("operation ") + std::to_string(static_cast<int>(operation)));
      EXPECT_LE(answer.predicted.limit_s, answer.predicted.steady_s * (1 + 1e-6));
      EXPECT_LE(answer.predicted.pipelined_s, answer.predicted.time_s * (1 + 1e-9));
    }
}

TEST(PlanCollective, ThePriceOfAPlanIsWhatWasPredicted) {
  const Cluster cluster = cluster_of(R"(
machine = [{ name = "lab", count = 6, devices = ["A100"] }, { name = "box", site = "other", devices = ["A6000*4"] }]
[network]
within_site = { latency = "0.1 ms", bandwidth = "10 Gbit/s" }
between_sites = { latency = "10 ms", bandwidth = "1 Gbit/s" }
reduction = { add = "1e-10 s/B", access = "1e-10 s/B" }
)");
  for (const auto operation : {CollectiveOperation::all_reduce, CollectiveOperation::reduce_scatter,
                               CollectiveOperation::all_gather, CollectiveOperation::broadcast}) {
    const auto plan = plan_collective(cluster, operation, 100'000'000, {});
    EXPECT_TRUE(verify(plan).empty());
    const auto price = price_collective(plan);
    EXPECT_NEAR(price.predicted.time_s / plan.predicted.time_s, 1, 1e-9);
    EXPECT_NEAR(price.predicted.pipelined_s / plan.predicted.pipelined_s, 1, 1e-9);
    EXPECT_NEAR(price.predicted.limit_s / plan.predicted.limit_s, 1, 1e-9);
    EXPECT_EQ(price.predicted.binding_cut, plan.predicted.binding_cut);
    const auto again = read_plan<CollectivePlan>(write(plan), "plan.json");
    EXPECT_EQ(again.program, plan.program);
    EXPECT_EQ(again.predicted, plan.predicted);
  }
}

TEST(PlanCollective, MatricesOfUnlikeLinks) {
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 4; ++trial) {
    const int ranks = 4 + trial;
    ClusterDescription description =
        described("machine = [{ name = \"m\", count = " + std::to_string(ranks) + ", devices = [\"A100\"] }]");
    NetworkMatrix matrix;
    for (int a = 0; a < ranks; ++a) {
      matrix.latency_s.emplace_back(ranks, 10e-3);
      matrix.bandwidth_bytes_per_s.emplace_back();
      for (int b = 0; b < ranks; ++b)
        matrix.bandwidth_bytes_per_s.back().push_back(a / 3 == b / 3 ? 1.25e9 : random_speed(random) / 160);
    }
    description.network.matrix = matrix;
    const Cluster cluster = resolve(description, "test");
    const auto answer = plan_collective(collective_network(cluster), CollectiveOperation::all_reduce, vector_bytes, {});
    expect_sound(collective_network(cluster), answer, "matrix");
    EXPECT_LE(answer.predicted.steady_s, answer.predicted.limit_s * 1.02) << answer.program.layout;
  }
}

// Fast along one cycle and slow everywhere else: more ranks than trees are packed for.
TEST(PlanCollective, ARingWhereLinksMakeOne) {
  const int ranks = 18;
  ClusterDescription description =
      described("machine = [{ name = \"m\", count = " + std::to_string(ranks) + ", devices = [\"A100\"] }]");
  NetworkMatrix matrix;
  for (int a = 0; a < ranks; ++a) {
    matrix.latency_s.emplace_back(ranks, 1e-5);
    matrix.bandwidth_bytes_per_s.emplace_back(ranks, 6e7);
  }
  for (int place = 0; place < ranks; ++place) {
    const auto a = static_cast<std::size_t>(place * 5 % ranks), b = static_cast<std::size_t>((place + 1) * 5 % ranks);
    matrix.bandwidth_bytes_per_s[a][b] = matrix.bandwidth_bytes_per_s[b][a] = 1.25e9;
  }
  description.network.matrix = matrix;
  const auto network = collective_network(resolve(description, "test"));
  for (const auto operation :
       {CollectiveOperation::all_reduce, CollectiveOperation::reduce_scatter, CollectiveOperation::all_gather}) {
    const auto answer = plan_collective(network, operation, 400'000'000 / ranks * ranks, {});
    expect_sound(network, answer, "cycle");
    EXPECT_EQ(answer.program.layout, "ring");
  }
}

CollectiveNetwork permuted(const CollectiveNetwork& network, const std::vector<int>& to) {
  CollectiveNetwork other = network;
  for (int rank = 0; rank < network.ranks(); ++rank) {
    const auto moved = static_cast<std::size_t>(to[static_cast<std::size_t>(rank)]);
    other.leaves[moved] = network.leaves[static_cast<std::size_t>(rank)];
    other.reduction[moved] = network.reduction[static_cast<std::size_t>(rank)];
    other.nodes[static_cast<std::size_t>(other.leaves[moved])].rank = static_cast<int>(moved);
  }
  for (auto& node : other.nodes) std::reverse(node.children.begin(), node.children.end());
  return other;
}

TEST(PlanCollective, TheOrderOfRanksDoesNotMatter) {
  std::mt19937_64 random(14);
  for (int trial = 0; trial < 20; ++trial) {
    const auto network = random_tree(random, 3 + trial % 9, 3, Ways::alike);
    std::vector<int> to(static_cast<std::size_t>(network.ranks()));
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random);
    for (const auto operation : {CollectiveOperation::all_reduce, CollectiveOperation::all_gather}) {
      const std::int64_t whole = 1000 * 64 * network.ranks();
      const auto one = plan_collective(network, operation, whole, {});
      const auto other = plan_collective(permuted(network, to), operation, whole, {});
      expect_sound(permuted(network, to), other, "permuted");
      EXPECT_NEAR(one.predicted.pipelined_s / other.predicted.pipelined_s, 1, 1e-9)
          << one.program.layout << " | " << other.program.layout;
    }
  }
}

TEST(PlanCollective, MoreBandwidthNeverCosts) {
  std::mt19937_64 random(15);
  for (int trial = 0; trial < 25; ++trial) {
    auto network = random_tree(random, 3 + trial % 8, 3, Ways::alike);
    const auto before = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
    for (auto& node : network.nodes) {
      if (node.up < 0 || random() % 4) continue;
      network.ports[static_cast<std::size_t>(node.up)].bytes_per_s *= 1.5;
      network.ports[static_cast<std::size_t>(node.down)].bytes_per_s *= 1.5;
    }
    const auto after = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
    EXPECT_LE(after.predicted.limit_s, before.predicted.limit_s * (1 + 1e-9));
    EXPECT_LE(after.predicted.pipelined_s, before.predicted.pipelined_s * 1.01)
        << before.program.layout << " | " << after.program.layout;
  }
}

TEST(PlanCollective, SameInputsSamePlan) {
  const auto network = racks(4, 6, 10e9, 20e9);
  const auto one = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
  const auto other = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
  EXPECT_EQ(one.program, other.program);
}

TEST(PlanCollective, LargeTrees) {
  const auto answer = plan_collective(racks(8, 24, 10e9, 100e9), CollectiveOperation::all_reduce, vector_bytes, {});
  expect_sound(racks(8, 24, 10e9, 100e9), answer, "192 ranks");
  EXPECT_GE(answer.predicted.efficiency, 0.8) << answer.program.layout;
}

TEST(PlanCollective, WhatCannotBeIsRefused) {
  const auto network = star({1e9, 1e9, 1e9});
  EXPECT_THROW(plan_collective(network, CollectiveOperation::all_reduce, 0, {}), Error);
  EXPECT_THROW(plan_collective(network, CollectiveOperation::broadcast, 8, {.root = 3}), Error);
  EXPECT_THROW(plan_collective(network, CollectiveOperation::all_gather, 10, {}), Error);
  try {
    plan_collective(network, CollectiveOperation::reduce_scatter, 10, {});
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "use 12 bytes");
  }
}

// ---- parts ----

TEST(Factors, AllOrdersShorterOnesFirst) {
  using Lists = std::vector<std::vector<int>>;
  EXPECT_EQ(ordered_factorisations(3, 100), (Lists{{3}}));
  EXPECT_EQ(ordered_factorisations(6, 100), (Lists{{6}, {3, 2}, {2, 3}}));
  // Of eight, the last group of each round one short.
  EXPECT_EQ(ordered_factorisations(7, 100), (Lists{{7}, {4, 2}, {2, 4}, {2, 2, 2}}));
  EXPECT_EQ(ordered_factorisations(7, 2), (Lists{{7}, {4, 2}}));
}

TEST(PlanCollective, WhatTheSearchSaysOfItself) {
  const Cluster cluster = cluster_of(R"(
machine = [{ name = "a", devices = ["A100"] }, { name = "b", devices = ["A100"] }, { name = "c", devices = ["A6000"] }]
network.within_site = { latency = "0.1 ms", bandwidth = "10 Gbit/s" }
)");
  const auto plan = plan_collective(cluster, CollectiveOperation::all_reduce, 1'000'000, {});
  EXPECT_EQ(plan.search.status, SearchStatus::gap);
  EXPECT_EQ(plan.search.bound, plan.predicted.limit_s);
  EXPECT_NEAR(*plan.search.gap, 1 - plan.predicted.efficiency, 1e-12);
  EXPECT_GT(*plan.search.gap, 0.01);
  EXPECT_GT(plan.search.evaluated, 0);
  // Of rounds in sequence nothing is proved.
  CollectiveOptions options{.objective = CollectiveObjective::rounds};
  const auto rounds = plan_collective(cluster, CollectiveOperation::all_reduce, 1'000'000, options);
  EXPECT_EQ(rounds.search.status, SearchStatus::heuristic);
  EXPECT_FALSE(rounds.search.bound || rounds.search.gap);
  options.deadline_s = 0;
  for (const auto objective : {CollectiveObjective::pipelined, CollectiveObjective::rounds}) {
    options.objective = objective;
    const auto cut = plan_collective(cluster, CollectiveOperation::all_reduce, 1'000'000, options);
    EXPECT_EQ(cut.search.status, SearchStatus::deadline);
    EXPECT_TRUE(verify(cut).empty());
  }
}

// 32 ranks, 50 us and 40 us for the bytes per hop: one after the other 31 x 90 us, all from the root 50 + 31 x 40 us;
// four from each need three rounds of 50 + 4 x 40 us.
TEST(PlanCollective, ABroadcastOfFewBytesGoesDownATree) {
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < 32; ++rank) add_rank(network, 0, "r", link_of(10e9, 2.5e-5), {}, {});
  const auto answer =
      plan_collective(network, CollectiveOperation::broadcast, 50'000, {.objective = CollectiveObjective::rounds});
  expect_sound(network, answer, "broadcast");
  EXPECT_LE(answer.predicted.time_s, 3 * (50e-6 + 4 * 40e-6) * (1 + 1e-9)) << answer.program.layout;
}

// Where a message costs nothing and much can overlap, chunks are as small as their parts may be: 16 bytes for each
// rank.
TEST(PlanCollective, ChunksHaveRoomForAPartOfEveryRank) {
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < 4; ++rank) add_rank(network, 0, "r", link_of(1e3), {}, {1e-3, 1e-3});
  const auto answer = plan_collective(network, CollectiveOperation::all_reduce, 4096, {.cost = {.message_s = 0}});
  EXPECT_TRUE(check_program(answer.program).empty());
  EXPECT_EQ(answer.program.chunks, 4096 / (4 * 16));
}

// Every choice of groups in racks and core, priced one by one.
TEST(PlanCollective, NoGroupsOfRacksAndHostsAreBetter) {
  for (const double uplink : {10e9, 40e9})
    for (const auto& [count, hosts] : {std::pair{4, 6}, std::pair{6, 4}, std::pair{12, 2}, std::pair{2, 12}}) {
      const CollectiveNetwork network = racks(count, hosts, 10e9, uplink);
      double least = std::numeric_limits<double>::infinity();
      for (const auto& outer : ordered_factorisations(count, 100))
        for (const auto& inner : ordered_factorisations(hosts, 100)) {
          std::vector<NodePolicy> policies(network.nodes.size());
          for (std::size_t node = 0; node < network.nodes.size(); ++node)
            policies[node].factors = node == 0 ? outer : inner;
          const auto tree = share_tree(network, policies, ShareRule::fastest, ShareWay::slower, 4e8);
          auto rounds = *share_rounds(tree, vector_bytes, 16, 1 << 20);
          const auto back = mirrored(rounds);
          rounds.insert(rounds.end(), back.begin(), back.end());
          least = std::min(least, price_rounds(network, rounds).time_s);
        }
      const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes,
                                          {.objective = CollectiveObjective::rounds});
      EXPECT_LE(answer.predicted.time_s, least * (1 + 1e-9)) << count << " x " << hosts << " " << answer.program.layout;
    }
}

// Larger than what is packed, and every link that differs by direction is slower upwards.
TEST(PlanCollective, LinksThatAreSlowerUpwards) {
  std::mt19937_64 random(17);
  for (int trial = 0; trial < 6; ++trial) {
    auto network = random_tree(random, 18, 3, Ways::different);
    for (const auto& node : network.nodes) {
      if (node.up < 0) continue;
      double& up = network.ports[static_cast<std::size_t>(node.up)].bytes_per_s;
      double& down = network.ports[static_cast<std::size_t>(node.down)].bytes_per_s;
      if (up > down) std::swap(up, down);
    }
    const auto answer = plan_collective(network, CollectiveOperation::all_reduce, vector_bytes, {});
    expect_sound(network, answer, "slower upwards");
    EXPECT_LE(answer.predicted.steady_s, answer.predicted.limit_s * 1.02) << trial << " " << answer.program.layout;
  }
}

}  // namespace
}  // namespace motley
