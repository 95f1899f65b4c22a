#include "motley/planner/collective/share_tree.hpp"

#include <gtest/gtest.h>

#include "motley/cost/collective_limit.hpp"
#include "motley/cost/genmodel.hpp"
#include "motley/plan/collective_check.hpp"
#include "motley/planner/collective/networks_test.hpp"

namespace motley {
namespace {

constexpr double bytes = 4e8;

CollectiveProgram program_along(const CollectiveNetwork& network, const ShareTree& tree) {
  auto rounds = *share_rounds(tree, static_cast<std::int64_t>(bytes), 16, 1 << 20);
  const auto back = mirrored(rounds);
  rounds.insert(rounds.end(), back.begin(), back.end());
  return program_of_rounds({.operation = CollectiveOperation::all_reduce,
                            .ranks = network.ranks(),
                            .root = 0,
                            .bytes = static_cast<std::int64_t>(bytes),
                            .chunks = 1,
                            .alignment = 16},
                           rounds);
}

void expect_near_the_limit(const CollectiveNetwork& network, double tolerance, const std::string& what) {
  const auto tree =
      share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest, ShareWay::slower, bytes);
  const auto program = program_along(network, tree);
  const auto wrong = check_program(program);
  ASSERT_TRUE(wrong.empty()) << what << ": " << wrong[0].place << " " << wrong[0].what;
  const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, bytes).seconds;
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

// Larger than what is packed: each half has shares of its own.
TEST(ShareTree, LinksThatDifferByDirection) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 10; ++trial) {
    const auto network = random_tree(random, 17 + 2 * trial, trial % 3 ? 3 : 1, Ways::different);
    const std::vector<NodePolicy> direct(network.nodes.size());
    const auto reducing = share_tree(network, direct, ShareRule::fastest, ShareWay::down, bytes);
    const auto spreading = share_tree(network, direct, ShareRule::fastest, ShareWay::up, bytes);
    const auto program =
        program_of_rounds({.operation = CollectiveOperation::all_reduce,
                           .ranks = network.ranks(),
                           .root = 0,
                           .bytes = static_cast<std::int64_t>(bytes),
                           .chunks = 1,
                           .alignment = 16},
                          *share_rounds(reducing, spreading, static_cast<std::int64_t>(bytes), 16, 1 << 20));
    const auto wrong = check_program(program);
    ASSERT_TRUE(wrong.empty()) << trial << ": " << wrong[0].place << " " << wrong[0].what;
    const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, bytes).seconds;
    EXPECT_LE(price_rounds(network, rounds_of(program)).steady_s, limit * 1.02) << trial;
  }
}

TEST(ShareTree, SlowRanksOwnNothing) {
  const auto network = star({10e9, 10e9, 10e9, 10e9, 10e9, 10e9, 1e9, 1e9});
  const auto tree =
      share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest, ShareWay::slower, bytes);
  EXPECT_NEAR(tree.steady_s, 3.2, 1e-6);
  EXPECT_EQ(tree.nodes[7].chosen, 0);
  EXPECT_EQ(tree.nodes[8].chosen, 0);
}

TEST(ShareTree, SharesOfAStarAreTheClosedForm) {
  const std::vector<double> gbit = {10, 8, 6, 5, 5, 4}, shares = {0.408, 0.276, 0.145, 0.079, 0.079, 0.013};
  std::vector<double> speeds;
  for (const double speed : gbit) speeds.push_back(speed * 1e9);
  const auto network = star(speeds);
  const auto tree =
      share_tree(network, std::vector<NodePolicy>(network.nodes.size()), ShareRule::fastest, ShareWay::slower, bytes);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) EXPECT_NEAR(tree.nodes[rank + 1].chosen, shares[rank], 6e-4);
}

}  // namespace
}  // namespace motley
