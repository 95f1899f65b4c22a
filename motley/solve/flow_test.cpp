#include "motley/solve/flow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double flow_unit = 1e-9;

struct Edge {
  int from = 0, to = 0;
  double capacity = 0;
};

// Least capacity over all 2^(n-2) cuts, by definition.
double least_cut(int vertices, const std::vector<Edge>& edges) {
  double least = FlowNetwork::unlimited;
  for (unsigned side = 0; side < 1u << vertices; ++side) {
    if ((side & 1u) == 0 || (side >> (vertices - 1) & 1u) != 0) continue;
    double sum = 0;
    for (const auto& edge : edges)
      if ((side >> edge.from & 1u) != 0 && (side >> edge.to & 1u) == 0) sum += edge.capacity;
    least = std::min(least, sum);
  }
  return least;
}

std::vector<Edge> random_edges(std::mt19937& random, int vertices) {
  std::uniform_real_distribution<double> capacity(0, 10), density(0.2, 0.9), coin(0, 1);
  const double share = density(random);
  std::vector<Edge> edges;
  for (int a = 0; a < vertices; ++a)
    for (int b = 0; b < vertices; ++b)
      if (a != b && coin(random) < share) edges.push_back({a, b, capacity(random)});
  return edges;
}

struct Built {
  FlowNetwork network;
  std::vector<int> ids;
};

Built build(int vertices, const std::vector<Edge>& edges) {
  Built built{FlowNetwork(vertices, 0, vertices - 1, flow_unit), {}};
  for (const auto& edge : edges) built.ids.push_back(built.network.add_edge(edge.from, edge.to, edge.capacity));
  return built;
}

// Flows within capacities, conserved at every inner vertex, and the value is what leaves the source.
void expect_valid(const Built& built, int vertices) {
  std::vector<double> balance(vertices, 0.0);
  for (const int id : built.ids) {
    const double flow = built.network.flow(id);
    EXPECT_GE(flow, 0);
    EXPECT_LE(flow, built.network.capacity(id));
    balance[built.network.from(id)] -= flow;
    balance[built.network.to(id)] += flow;
  }
  for (int v = 1; v + 1 < vertices; ++v) EXPECT_NEAR(balance[v], 0, 1e-9);
  EXPECT_NEAR(balance.back(), built.network.value(), 1e-9);
}

TEST(Flow, EqualsTheLeastCutOnRandomGraphs) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int vertices = 2 + round % 8;
    const std::vector<Edge> edges = random_edges(random, vertices);
    Built built = build(vertices, edges);
    const double value = built.network.maximise();
    EXPECT_NEAR(value, least_cut(vertices, edges), 1e-6);
    expect_valid(built, vertices);
    double cut = 0;
    for (const int edge : built.network.min_cut()) cut += built.network.capacity(edge);
    EXPECT_NEAR(cut, value, 1e-9);
  }
}

TEST(Flow, ARepairedFlowEqualsOneComputedAnew) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> capacity(0, 10);
  for (int round = 0; round < 40; ++round) {
    const int vertices = 4 + round % 6;
    std::vector<Edge> edges = random_edges(random, vertices);
    if (edges.empty()) continue;
    Built built = build(vertices, edges);
    built.network.maximise();
    for (int change = 0; change < 60; ++change) {
      const std::size_t which = random() % edges.size();
      const auto kind = random() % 3;
      if (kind == 0) {  // another edge in its place
        built.network.remove_edge(built.ids[which]);
        const int from = static_cast<int>(random() % vertices);
        const int to = (from + 1 + static_cast<int>(random() % (vertices - 1))) % vertices;
        edges[which] = {from, to, capacity(random)};
        built.ids[which] = built.network.add_edge(from, to, edges[which].capacity);
      } else {
        edges[which].capacity = kind == 1 ? 0 : capacity(random);
        built.network.set_capacity(built.ids[which], edges[which].capacity);
      }
      expect_valid(built, vertices);
      if (change % 7 == 0) built.network.clear_flow();
      EXPECT_EQ(built.network.maximise(), build(vertices, edges).network.maximise());
      expect_valid(built, vertices);
    }
  }
}

TEST(Flow, PathsSumToTheFlow) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const int vertices = 3 + round % 7;
    const std::vector<Edge> edges = random_edges(random, vertices);
    Built built = build(vertices, edges);
    const double value = built.network.maximise();
    const std::vector<FlowPath> paths = built.network.paths();
    EXPECT_LE(paths.size(), edges.size());
    std::map<int, double> used;
    double sum = 0;
    for (const auto& path : paths) {
      EXPECT_GT(path.flow, 0);
      int vertex = 0;
      for (const int edge : path.edges) {
        EXPECT_EQ(built.network.from(edge), vertex);
        vertex = built.network.to(edge);
        used[edge] += path.flow;
      }
      EXPECT_EQ(vertex, vertices - 1);
      sum += path.flow;
    }
    EXPECT_NEAR(sum, value, 1e-9);
    for (const auto& [edge, flow] : used) EXPECT_LE(flow, built.network.flow(edge) + 1e-9);
  }
}

TEST(Flow, TheWidestPathComesFirst) {
  FlowNetwork network(4, 0, 3, flow_unit);
  const int direct = network.add_edge(0, 3, 1), first = network.add_edge(0, 1, 5), second = network.add_edge(1, 3, 4);
  EXPECT_DOUBLE_EQ(network.maximise(), 5);
  const std::vector<FlowPath> paths = network.paths();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_DOUBLE_EQ(paths[0].flow, 4);
  EXPECT_EQ(paths[0].edges, (std::vector<int>{first, second}));
  EXPECT_DOUBLE_EQ(paths[1].flow, 1);
  EXPECT_EQ(paths[1].edges, std::vector<int>{direct});
}

TEST(Flow, ChainsParallelsAndUnlimitedEdges) {
  FlowNetwork chain(4, 0, 3, flow_unit);
  chain.add_edge(0, 1, FlowNetwork::unlimited);
  const int narrow = chain.add_edge(1, 2, 2.5);
  chain.add_edge(2, 3, 4);
  EXPECT_DOUBLE_EQ(chain.maximise(), 2.5);
  EXPECT_EQ(chain.min_cut(), std::vector<int>{narrow});
  chain.add_edge(1, 2, 1);
  EXPECT_DOUBLE_EQ(chain.maximise(), 3.5);
  chain.set_capacity(narrow, 5);
  EXPECT_DOUBLE_EQ(chain.maximise(), 4);
  EXPECT_EQ(chain.capacity(0), FlowNetwork::unlimited);
}

TEST(Flow, WithoutAWayTheFlowIsZero) {
  FlowNetwork apart(4, 0, 3, flow_unit);
  apart.add_edge(0, 1, 3);
  apart.add_edge(2, 3, 3);
  EXPECT_EQ(apart.maximise(), 0);
  EXPECT_TRUE(apart.paths().empty());
  EXPECT_TRUE(apart.min_cut().empty());
}

TEST(Flow, RefusesNegativeCapacity) {
  FlowNetwork network(2, 0, 1, flow_unit);
  EXPECT_THROW(network.add_edge(0, 1, -1), Error);
}

}  // namespace
}  // namespace motley
