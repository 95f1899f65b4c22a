#include "motley/planner/collective/canonical.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "motley/base/index.hpp"
#include "motley/planner/collective/networks_test.hpp"

namespace motley {
namespace {

// A tree whose links differ in latency alone, or whose ranks differ in what adding costs, as often as not.
CollectiveNetwork random_network(std::mt19937_64& random, int ranks) {
  CollectiveNetwork network = random_tree(random, ranks, 3, Ways::alike);
  for (auto& port : network.ports) {
    port.bytes_per_s = 1e9;
    port.latency_s = 1e-6 * std::uniform_int_distribution<int>(1, 2)(random);
  }
  for (auto& reduction : network.reduction)
    reduction = {1e-10 * std::uniform_int_distribution<int>(1, 2)(random),
                 1e-10 * std::uniform_int_distribution<int>(1, 2)(random)};
  return network;
}

// The same network with its ranks numbered, and its branches listed, in another order.
CollectiveNetwork shuffled(const CollectiveNetwork& network, std::mt19937_64& random) {
  CollectiveNetwork other = network;
  std::vector<int> to(network.leaves.size());
  std::iota(to.begin(), to.end(), 0);
  std::shuffle(to.begin(), to.end(), random);
  for (int rank = 0; rank < network.ranks(); ++rank) {
    other.leaves[at(to[at(rank)])] = network.leaves[at(rank)];
    other.reduction[at(to[at(rank)])] = network.reduction[at(rank)];
    other.nodes[at(network.leaves[at(rank)])].rank = to[at(rank)];
  }
  for (auto& node : other.nodes) std::shuffle(node.children.begin(), node.children.end(), random);
  return other;
}

void expect_the_same_network(const CanonicalNetwork& canonical, const CollectiveNetwork& network) {
  ASSERT_EQ(canonical.network.ranks(), network.ranks());
  for (int a = 0; a < network.ranks(); ++a) {
    const int outside = canonical.rank_of[at(a)];
    EXPECT_EQ(canonical.network.reduction[at(a)], network.reduction[at(outside)]);
    for (int b = 0; b < network.ranks(); ++b) {
      if (a == b) continue;
      EXPECT_EQ(canonical.network.path(a, b), network.path(outside, canonical.rank_of[at(b)]));
    }
  }
}

// What a cost can see of a network in the order of its ranks: the ports of every path, and what adding costs.
std::vector<double> figures(const CollectiveNetwork& network) {
  std::vector<double> figures;
  for (int a = 0; a < network.ranks(); ++a) {
    figures.push_back(network.reduction[at(a)].add_s_per_byte);
    figures.push_back(network.reduction[at(a)].access_s_per_byte);
    for (int b = 0; b < network.ranks(); ++b) {
      if (a == b) continue;
      for (const int port : network.path(a, b)) {
        figures.push_back(network.ports[at(port)].bytes_per_s);
        figures.push_back(network.ports[at(port)].latency_s);
      }
    }
  }
  return figures;
}

TEST(CanonicalNetwork, DoesNotDependOnTheOrderOfRanks) {
  std::mt19937_64 random(21);
  for (int trial = 0; trial < 40; ++trial) {
    const CollectiveNetwork network = random_network(random, 2 + trial % 9);
    const CanonicalNetwork canonical = canonical_network(network);
    expect_the_same_network(canonical, network);
    const CollectiveNetwork other = shuffled(network, random);
    const CanonicalNetwork again = canonical_network(other);
    expect_the_same_network(again, other);
    EXPECT_EQ(figures(again.network), figures(canonical.network)) << trial;
  }
}

// Sites of unlike sizes, joined pair by pair at unlike speeds: a link belongs to two sites, wherever they stand.
TEST(CanonicalNetwork, AMeshKeepsTheOrderOfItsBranches) {
  const Cluster cluster = resolve(read<ClusterDescription>(parse_toml(R"(
format = "motley.cluster/1"
name = "sites"
machine = [{ name = "a", site = "one", devices = ["A100"] }, { name = "b", site = "two", count = 3, devices = ["A100"] },
           { name = "c", site = "three", count = 2, devices = ["A100*2"] }]
link = [{ between = ["one", "two"], latency = "1 ms", bandwidth = "1 Gbit/s" },
        { between = ["one", "three"], latency = "2 ms", bandwidth = "2 Gbit/s" },
        { between = ["two", "three"], latency = "3 ms", bandwidth = "3 Gbit/s" }]
[network]
within_site = { latency = "0.1 ms", bandwidth = "10 Gbit/s" }
)",
                                                                      "sites"),
                                                           "sites"),
                                  "sites");
  const CollectiveNetwork network = collective_network(cluster);
  ASSERT_TRUE(network.has_mesh());
  expect_the_same_network(canonical_network(network), network);
}

}  // namespace
}  // namespace motley
