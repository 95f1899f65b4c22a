#include "motley/planner/collective/share_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/genmodel.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/planner/collective/networks_test.hpp"

namespace motley {
namespace {

CollectiveProgram program_along(const CollectiveNetwork& network, const ShareTree& tree) {
  auto rounds = *share_rounds(tree, vector_bytes, 16, 1 << 20);
  const auto back = mirrored(rounds);
  rounds.insert(rounds.end(), back.begin(), back.end());
  return program_of_rounds({.operation = CollectiveOperation::all_reduce,
                            .ranks = network.ranks(),
                            .root = 0,
                            .bytes = vector_bytes,
                            .chunks = 1,
                            .alignment = 16},
                           rounds);
}

void expect_near_the_limit(const CollectiveNetwork& network, double tolerance, const std::string& what,
                           ShareRule rule = ShareRule::fastest) {
  const auto tree =
      share_tree(network, std::vector<NodePolicy>(network.nodes.size()), rule, ShareWay::slower, vector_bytes);
  const auto program = program_along(network, tree);
  const auto wrong = check_program(program);
  ASSERT_TRUE(wrong.empty()) << what << ": " << wrong[0].place << " " << wrong[0].what;
  const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds;
  const double steady = price_rounds(network, rounds_of(program)).steady_s;
  EXPECT_LE(steady, limit * tolerance) << what;
  EXPECT_GE(steady, limit * (1 - 1e-5)) << what;
  EXPECT_NEAR(steady / tree.steady_s, 1, 1e-3) << what;
}

TEST(ShareTree, StarsOfAnySpeeds) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 40; ++trial)
    expect_near_the_limit(random_star(random, 2 + trial % 12), 1.001, "star " + std::to_string(trial));
}

TEST(ShareTree, TreesOfAnySpeeds) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 100; ++trial)
    expect_near_the_limit(random_tree(random, 2 + trial % 14, 3, Ways::alike), 1.001, "tree " + std::to_string(trial));
}

TEST(ShareTree, WhatLeavesRoomIsAsFast) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 100; ++trial)
    expect_near_the_limit(random_tree(random, 2 + trial % 14, 3, Ways::alike), 1.001, "tree " + std::to_string(trial),
                          ShareRule::spread);
}

// Larger than what is packed: each half has shares of its own.
TEST(ShareTree, LinksThatDifferByDirection) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 10; ++trial) {
    const auto network = random_tree(random, 17 + 2 * trial, trial % 3 ? 3 : 1, Ways::different);
    const std::vector<NodePolicy> direct(network.nodes.size());
    const auto reducing = share_tree(network, direct, ShareRule::fastest, ShareWay::down, vector_bytes);
    const auto spreading = share_tree(network, direct, ShareRule::fastest, ShareWay::up, vector_bytes);
    const auto program = program_of_rounds({.operation = CollectiveOperation::all_reduce,
                                            .ranks = network.ranks(),
                                            .root = 0,
                                            .bytes = vector_bytes,
                                            .chunks = 1,
                                            .alignment = 16},
                                           *share_rounds(reducing, spreading, vector_bytes, 16, 1 << 20));
    const auto wrong = check_program(program);
    ASSERT_TRUE(wrong.empty()) << trial << ": " << wrong[0].place << " " << wrong[0].what;
    const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds;
    EXPECT_LE(price_rounds(network, rounds_of(program)).steady_s, limit * 1.02) << trial;
  }
}

TEST(ShareTree, SlowRanksOwnNothing) {
  const auto network = star({10e9, 10e9, 10e9, 10e9, 10e9, 10e9, 1e9, 1e9});
  const auto tree = share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest,
                               ShareWay::slower, vector_bytes);
  EXPECT_NEAR(tree.steady_s, 3.2, 1e-6);
  EXPECT_EQ(tree.nodes[7].chosen, 0);
  EXPECT_EQ(tree.nodes[8].chosen, 0);
}

TEST(ShareTree, SharesOfAStarAreTheClosedForm) {
  const std::vector<double> gbit = {10, 8, 6, 5, 5, 4}, shares = {0.408, 0.276, 0.145, 0.079, 0.079, 0.013};
  std::vector<double> speeds;
  for (const double speed : gbit) speeds.push_back(speed * 1e9);
  const auto network = star(speeds);
  const auto tree = share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest,
                               ShareWay::slower, vector_bytes);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) EXPECT_NEAR(tree.nodes[rank + 1].chosen, shares[rank], 6e-4);
}

// ---- by hand ----

constexpr double gbit_s = 1e9 / 8;

CollectiveNetwork racks_of(const std::vector<std::vector<double>>& hosts_bits_per_s, double uplink_bits_per_s) {
  CollectiveNetwork network = empty_network("core");
  for (const auto& hosts : hosts_bits_per_s) {
    const int rack = add_switch(network, 0, "rack", link_of(uplink_bits_per_s), {}, {});
    for (const double speed : hosts) add_rank(network, rack, "h", link_of(speed), {}, {});
  }
  return network;
}

// Racks of two, the fourth rank at half the speed: that one's port is busy all the time, and so would be the third's if
// it took in all that the fourth has. If a third of that goes up as it is (z = -1/3), the third takes in 2/3, the first
// two 2/3 each, and no other port is busy for more than (1 + 2/3) / 2 of the time.
TEST(ShareTree, RoomIsLeftWhereThereIsAny) {
  const auto network = racks_of({{1e9, 1e9}, {1e9, 0.5e9}}, 1e9);
  const std::vector<NodePolicy> direct(network.nodes.size());
  const auto full = share_tree(network, direct, ShareRule::fastest, ShareWay::slower, vector_bytes);
  const auto tree = share_tree(network, direct, ShareRule::spread, ShareWay::slower, vector_bytes);
  EXPECT_NEAR(tree.steady_s, full.steady_s, 1e-9);
  EXPECT_NEAR(tree.steady_s, vector_bytes / (0.5 * gbit_s), 1e-9);
  for (const ShareNode& node : tree.nodes) {
    if (node.in_bytes_per_s < gbit_s) {
      EXPECT_NEAR(node.z, 0, 1e-9);
    } else if (node.rank >= 0) {
      EXPECT_NEAR(node.z, 2.0 / 3, 1e-6) << node.rank;
    }
  }
  const auto racks = tree.nodes[0].members;
  EXPECT_NEAR(tree.nodes[static_cast<std::size_t>(racks[0])].z, 1.0 / 3, 1e-6);
  EXPECT_NEAR(tree.nodes[static_cast<std::size_t>(racks[1])].z, -1.0 / 3, 1e-6);
  const auto full_share = [&](const ShareTree& made) {
    return price_rounds(network, rounds_of(program_along(network, made))).full_share;
  };
  EXPECT_NEAR(full_share(full), 4.0 / 12, 1e-9);
  EXPECT_NEAR(full_share(tree), 2.0 / 12, 1e-9);
}

ShareTree tree_of(const CollectiveNetwork& network, const std::vector<NodePolicy>& policies) {
  return share_tree(network, policies, ShareRule::fastest, ShareWay::slower, vector_bytes);
}

// A switch with one rank below is passed over; its link and the rank's own are one, as slow as the slower.
TEST(ShareTree, ASwitchWithOneBranchIsALink) {
  CollectiveNetwork network = star({10e9, 10e9});
  const int alone =
      add_switch(network, 0, "alone", {.up_bytes_per_s = 2 * gbit_s, .down_bytes_per_s = 7 * gbit_s}, {}, {});
  add_rank(network, alone, "r2", {.up_bytes_per_s = 5 * gbit_s, .down_bytes_per_s = 3 * gbit_s}, {}, {});
  const auto tree = share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest,
                               ShareWay::down, vector_bytes);
  ASSERT_EQ(tree.nodes.size(), 4u);
  EXPECT_EQ(tree.nodes[3].rank, 2);
  EXPECT_EQ(tree.nodes[3].out_bytes_per_s, 2 * gbit_s);
  EXPECT_EQ(tree.nodes[3].in_bytes_per_s, 3 * gbit_s);
}

TEST(ShareTree, TheFastestRanksOwnWhatOthersLeaveToThem) {
  const CollectiveNetwork network = racks_of({{4e9, 10e9, 8e9}, {10e9, 10e9, 10e9}}, 1e9);
  std::vector<NodePolicy> policies(network.nodes.size());
  policies[1].owners = 2;
  const ShareTree tree = tree_of(network, policies);
  std::vector<bool> may_own(6);
  for (const auto& node : tree.nodes)
    if (node.rank >= 0) may_own[static_cast<std::size_t>(node.rank)] = node.may_own;
  EXPECT_EQ(may_own, (std::vector<bool>{false, true, true, true, true, true}));
  for (const auto& node : tree.nodes)
    if (node.rank == 0) {
      EXPECT_EQ(node.chosen, 0);
    }
}

// Three in groups of two: a pair and one by itself, who comes to the second round without a group of his own.
TEST(ShareTree, OneThatIsLeftOverFormsNoGroup) {
  const CollectiveNetwork network = star({10e9, 10e9, 10e9});
  std::vector<NodePolicy> policies(network.nodes.size());
  policies[0].factors = {2, 2};
  const ShareTree tree = tree_of(network, policies);
  EXPECT_EQ(tree.nodes.size(), 5u);  // the root, the pair, three ranks
  EXPECT_FALSE(tree.in_step);
  const auto rounds = *share_rounds(tree, vector_bytes, 16, 1 << 20);
  EXPECT_EQ(rounds.size(), 2u);
}

TEST(ShareTree, BranchesOfOneDepthAreInStep) {
  const auto in_step = [](const CollectiveNetwork& network) {
    return tree_of(network, std::vector<NodePolicy>(network.nodes.size())).in_step;
  };
  EXPECT_TRUE(in_step(racks_of({{10e9, 10e9}, {10e9, 10e9}}, 20e9)));
  CollectiveNetwork uneven = racks_of({{10e9, 10e9}, {10e9, 10e9}}, 20e9);
  add_rank(uneven, 0, "next", link_of(10e9), {}, {});
  EXPECT_FALSE(in_step(uneven));
  // An uplink that carries more than one vector in the time the hosts need: partial sums are handed on as they are.
  const CollectiveNetwork handed_on = racks_of({{1e9, 1e9}, {10e9, 10e9}}, 20e9);
  const ShareTree tree = tree_of(handed_on, std::vector<NodePolicy>(handed_on.nodes.size()));
  EXPECT_TRUE(std::any_of(tree.nodes.begin(), tree.nodes.end(), [](const ShareNode& node) { return node.passed > 0; }));
  EXPECT_FALSE(tree.in_step);
}

// In a ring everybody hands on one partial sum: also where a branch had rather handed on several.
TEST(ShareTree, RingsOfUnlikeBranches) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 30; ++trial) {
    const auto network = random_tree(random, 4 + trial % 9, 3, Ways::alike);
    std::vector<NodePolicy> policies(network.nodes.size());
    policies[0].pattern = GroupPattern::ring;
    const auto wrong = check_program(program_along(network, tree_of(network, policies)));
    EXPECT_TRUE(wrong.empty()) << trial << ": " << wrong[0].place << " " << wrong[0].what;
  }
}

TEST(ShareTree, NeighbouringRangesOfOnePairAreOneTransfer) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 20; ++trial) {
    const auto network = random_tree(random, 4 + trial % 9, 3, Ways::alike);
    const auto tree = tree_of(network, std::vector<NodePolicy>(network.nodes.size()));
    const auto rounds = *share_rounds(tree, vector_bytes, 16, 1 << 20);
    for (const auto& round : rounds)
      for (const auto& a : round)
        for (const auto& b : round) EXPECT_FALSE(a.from == b.from && a.to == b.to && a.last == b.first) << trial;
  }
}

// What is spread is received once by everybody but the one in whom it came together.
TEST(ShareTree, NoRankIsSentASumThatCameTogetherInIt) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 20; ++trial) {
    const auto network = random_tree(random, 3 + trial % 9, 3, Ways::different);
    const std::vector<NodePolicy> direct(network.nodes.size());
    const auto reducing = share_tree(network, direct, ShareRule::fastest, ShareWay::down, vector_bytes);
    const auto spreading = share_tree(network, direct, ShareRule::fastest, ShareWay::up, vector_bytes);
    std::int64_t received = 0;
    const auto rounds = *share_rounds(reducing, spreading, vector_bytes, 16, 1 << 20);
    for (const auto& round : rounds)
      for (const auto& transfer : round)
        if (transfer.kind == CollectiveStepKind::recv) received += transfer.last - transfer.first;
    EXPECT_EQ(received, (network.ranks() - 1) * vector_bytes) << trial;
  }
}

}  // namespace
}  // namespace motley
