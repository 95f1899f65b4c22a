#include "motley/planner/collective/tree_packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/genmodel.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/planner/collective/networks_test.hpp"
#include "motley/solve/milp.hpp"

namespace motley {
namespace {

// All rooted spanning trees over the ranks, each as who hangs below whom.
void every_tree(int ranks, int root, const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> above(static_cast<std::size_t>(ranks), 0);
  const std::function<void(int)> place = [&](int rank) {
    if (rank == ranks) {
      for (int node = 0; node < ranks; ++node) {
        int up = node;
        for (int steps = 0; up != root && steps < ranks; ++steps) up = above[static_cast<std::size_t>(up)];
        if (up != root) return;
      }
      visit(above);
      return;
    }
    if (rank == root) {
      above[static_cast<std::size_t>(rank)] = -1;
      place(rank + 1);
      return;
    }
    for (int other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      above[static_cast<std::size_t>(rank)] = other;
      place(rank + 1);
    }
  };
  place(0);
}

// The linear programme over all rooted spanning trees, both halves, roots shared: seconds.
double exact_optimum(const CollectiveNetwork& network) {
  MilpModel model;
  const int time = model.add_column({.cost = 1, .upper = 1e4});
  std::vector<MilpRow> ports(network.ports.size(), MilpRow{.upper = 0, .entries = {{time, -1}}});
  std::vector<MilpRow> roots(static_cast<std::size_t>(network.ranks()), MilpRow{.lower = 0, .upper = 0});
  MilpRow whole{.lower = 1, .upper = 1};
  for (int root = 0; root < network.ranks(); ++root)
    every_tree(network.ranks(), root, [&](const std::vector<int>& above) {
      for (const bool reduces : {true, false}) {
        const int column = model.add_column({.upper = 1});
        std::vector<double> busy(network.ports.size(), 0);
        for (int rank = 0; rank < network.ranks(); ++rank) {
          const int other = above[static_cast<std::size_t>(rank)];
          if (other < 0) continue;
          for (const int port : reduces ? network.path(rank, other) : network.path(other, rank))
            busy[static_cast<std::size_t>(port)] +=
                vector_bytes / network.ports[static_cast<std::size_t>(port)].bytes_per_s;
        }
        for (std::size_t port = 0; port < busy.size(); ++port)
          if (busy[port] > 0) ports[port].entries.push_back({column, busy[port]});
        roots[static_cast<std::size_t>(root)].entries.push_back({column, reduces ? 1.0 : -1.0});
        if (reduces) whole.entries.push_back({column, 1.0});
      }
    });
  for (auto& row : ports) model.add_row(std::move(row));
  for (auto& row : roots) model.add_row(std::move(row));
  model.add_row(std::move(whole));
  const auto answer = solve_milp(model, {.integrality = Integrality::relaxed});
  return answer.status == MilpStatus::optimal ? answer.objective : -1;
}

CollectiveProgram packed_program(const CollectiveNetwork& network, const TreePacking& packing,
                                 CollectiveOperation operation, int root = 0) {
  const auto whole = vector_bytes / 64 / network.ranks() * 64 * network.ranks();
  std::vector<int> in_order(static_cast<std::size_t>(network.ranks()));
  std::iota(in_order.begin(), in_order.end(), 0);
  return program_of_rounds(
      {.operation = operation, .ranks = network.ranks(), .root = root, .bytes = whole, .chunks = 1, .alignment = 16},
      packed_rounds(packing, operation, in_order, whole, 16));
}

TEST(Arborescence, LeastOfAll) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 60; ++trial) {
    const int nodes = 2 + trial % 4, root = trial % nodes;
    std::vector<double> cost(static_cast<std::size_t>(nodes * nodes));
    for (double& one : cost) one = std::uniform_int_distribution<int>(0, 9)(random);
    const auto cost_of = [&](const std::vector<int>& above) {
      double sum = 0;
      for (int node = 0; node < nodes; ++node)
        if (above[static_cast<std::size_t>(node)] >= 0)
          sum += cost[static_cast<std::size_t>(above[static_cast<std::size_t>(node)] * nodes + node)];
      return sum;
    };
    double least = 1e9;
    every_tree(nodes, root, [&](const std::vector<int>& above) { least = std::min(least, cost_of(above)); });
    EXPECT_DOUBLE_EQ(cost_of(least_arborescence(cost, nodes, root)), least) << trial;
  }
}

TEST(CollectiveLimit, EqualsTheProgrammeOverAllTrees) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 40; ++trial) {
    const auto network = random_tree(random, 2 + trial % 4, 3, trial % 2 ? Ways::different : Ways::alike);
    const double exact = exact_optimum(network);
    ASSERT_GT(exact, 0);
    EXPECT_NEAR(collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds / exact, 1, 1e-6)
        << trial;
  }
}

TEST(TreePacking, ReachesTheLimitOfSmallTrees) {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 40; ++trial) {
    const auto network = random_tree(random, 2 + trial % 4, 3, trial % 2 ? Ways::different : Ways::alike);
    const auto packing = pack_trees(network, CollectiveOperation::all_reduce, 0, vector_bytes, {});
    const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds;
    EXPECT_LE(packing.steady_s, limit * 1.01) << trial;
    EXPECT_LE(packing.bound_s, limit * (1 + 1e-6)) << trial;
    const auto program = packed_program(network, packing, CollectiveOperation::all_reduce);
    const auto wrong = check_program(program);
    ASSERT_TRUE(wrong.empty()) << wrong[0].place << " " << wrong[0].what;
    EXPECT_LE(price_rounds(network, rounds_of(program), vector_bytes / static_cast<double>(program.bytes)).steady_s,
              limit * 1.01);
  }
}

TEST(TreePacking, ServesAllOperations) {
  std::mt19937_64 random(9);
  for (const auto operation :
       {CollectiveOperation::reduce_scatter, CollectiveOperation::all_gather, CollectiveOperation::broadcast})
    for (int trial = 0; trial < 15; ++trial) {
      const auto network = random_tree(random, 2 + trial % 5, 3, Ways::different);
      const int root = trial % network.ranks();
      const auto packing = pack_trees(network, operation, root, vector_bytes, {});
      const auto wrong = check_program(packed_program(network, packing, operation, root));
      ASSERT_TRUE(wrong.empty()) << wrong[0].place << " " << wrong[0].what;
      EXPECT_LE(packing.steady_s, packing.bound_s * 1.01);
      EXPECT_GE(packing.steady_s, collective_limit(network, operation, root, vector_bytes).seconds * (1 - 1e-6));
    }
}

// Slow ranks are dear as roots: what the cheapest root costs bounds the time, not what roots cost on average.
TEST(TreePacking, TheBoundHoldsAtEveryPass) {
  const auto network = star({10e9, 10e9, 10e9, 10e9, 1e9, 1e9});
  const double limit = collective_limit(network, CollectiveOperation::all_reduce, 0, vector_bytes).seconds;
  for (const int passes : {1, 2, 4, 8, 200}) {
    const auto packing = pack_trees(network, CollectiveOperation::all_reduce, 0, vector_bytes, {.most_passes = passes});
    EXPECT_LE(packing.bound_s, limit * (1 + 1e-6)) << passes;
    EXPECT_GE(packing.steady_s, limit * (1 - 1e-6)) << passes;
  }
}

}  // namespace
}  // namespace motley
