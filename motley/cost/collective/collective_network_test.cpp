#include "motley/cost/collective/collective_network.hpp"

#include <gtest/gtest.h>

#include "motley/cost/collective/collective_limit.hpp"
#include "motley/cost/collective/genmodel.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

constexpr double large_bytes = 6e9, fast_port = 1e12, slow_port = 1e9;

struct Port {
  double up = fast_port, down = fast_port;
};

CollectiveNetwork star(const std::vector<Port>& ports) {
  CollectiveNetwork network = empty_network("switch");
  for (std::size_t rank = 0; rank < ports.size(); ++rank)
    add_rank(network, 0, "r" + std::to_string(rank), {0, ports[rank].up, ports[rank].down}, {}, {});
  return network;
}

double limit_s(const CollectiveNetwork& network, CollectiveOperation operation, int root = 0) {
  return collective_limit(network, operation, root, large_bytes).seconds;
}

// Of three ranks one sends or receives slowly: what must pass its port, and no more.
TEST(CollectiveLimit, CountsWhatMustPassInEitherDirection) {
  using enum CollectiveOperation;
  const CollectiveNetwork sends = star({{.up = slow_port}, {}, {}}), receives = star({{.down = slow_port}, {}, {}});
  EXPECT_NEAR(limit_s(sends, all_gather), large_bytes / 3 / slow_port, 1e-2);
  EXPECT_NEAR(limit_s(receives, all_gather), large_bytes * 2 / 3 / slow_port, 1e-2);
  EXPECT_NEAR(limit_s(sends, reduce_scatter), large_bytes * 2 / 3 / slow_port, 1e-2);
  EXPECT_NEAR(limit_s(receives, reduce_scatter), large_bytes / 3 / slow_port, 1e-2);
  EXPECT_NEAR(limit_s(sends, all_reduce), large_bytes / slow_port, 1e-2);
  EXPECT_NEAR(limit_s(receives, all_reduce), large_bytes / slow_port, 1e-2);
  EXPECT_EQ(collective_limit(receives, all_gather, 0, large_bytes).binding_cut, "r0 down");
}

TEST(CollectiveLimit, ABroadcastNeedsTheRootsWayOutAndTheOthersWayIn) {
  using enum CollectiveOperation;
  const CollectiveNetwork sends = star({{.up = slow_port}, {}, {}}), receives = star({{.down = slow_port}, {}, {}});
  EXPECT_NEAR(limit_s(sends, broadcast, 0), large_bytes / slow_port, 1e-2);
  EXPECT_LT(limit_s(sends, broadcast, 1), 0.1);
  EXPECT_LT(limit_s(receives, broadcast, 0), 0.1);
  EXPECT_NEAR(limit_s(receives, broadcast, 1), large_bytes / slow_port, 1e-2);
}

// Each uplink by itself would let the vector through in large_bytes / slow_port; together three take 2 * 2 / 3 of it.
TEST(CollectiveLimit, UplinksOfSeveralSwitchesCountTogether) {
  CollectiveNetwork network = empty_network("core");
  for (int s = 0; s < 3; ++s) {
    const int node = add_switch(network, 0, "s" + std::to_string(s), {0, slow_port, slow_port}, {}, {});
    for (int host = 0; host < 2; ++host) add_rank(network, node, "h", {0, fast_port, fast_port}, {}, {});
  }
  EXPECT_NEAR(limit_s(network, CollectiveOperation::all_reduce), 4.0 / 3 * large_bytes / slow_port, 1e-6);
}

Cluster matrix_cluster() {
  return cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "m", count = 3, devices = ["A100"] }]
[network.matrix]
latency_ms = [[0, 1, 2], [3, 0, 4], [5, 6, 0]]
bandwidth_gbit_s = [[0, 8, 16], [24, 0, 32], [40, 48, 0]]
)");
}

TEST(CollectiveNetwork, AMatrixHasALinkForEachPairAndDirection) {
  const CollectiveNetwork network = collective_network(matrix_cluster());
  const auto capacity = network.capacities();
  ASSERT_EQ(capacity.size(), 4u);  // all of a device's links at once, but no more than its fastest
  EXPECT_DOUBLE_EQ(capacity[1].up, 2e9);
  EXPECT_DOUBLE_EQ(capacity[1].down, 5e9);
  EXPECT_DOUBLE_EQ(capacity[2].up, 4e9);
  EXPECT_DOUBLE_EQ(capacity[2].down, 6e9);
  EXPECT_DOUBLE_EQ(capacity[3].up, 6e9);
  EXPECT_DOUBLE_EQ(capacity[3].down, 4e9);
  const double speeds[3][3] = {{0, 1e9, 2e9}, {3e9, 0, 4e9}, {5e9, 6e9, 0}};
  const double latencies[3][3] = {{0, 1e-3, 2e-3}, {3e-3, 0, 4e-3}, {5e-3, 6e-3, 0}};
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      const auto cost = price_rounds(network, {{{from, to, 0, 1'000'000, CollectiveStepKind::recv}}});
      EXPECT_DOUBLE_EQ(cost.time_s, latencies[from][to] + 1e6 / speeds[from][to]) << from << " to " << to;
    }
}

TEST(CollectiveNetwork, DevicesOfAMachineSeeItsWholeLinkOnce) {
  const CollectiveNetwork network = collective_network(cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "m", devices = ["A100*2"], link = { latency = "10 us", bandwidth = "1 GB/s" } }]
)"));
  const auto cost = price_rounds(network, {{{0, 1, 0, 1'000'000, CollectiveStepKind::recv}}});
  EXPECT_DOUBLE_EQ(cost.time_s, 10e-6 + 1e-3);
}

TEST(GenModel, MessagesAreThoseThatARankSendsOrHearsOf) {
  using enum CollectiveStepKind;
  const auto network = star({{}, {}, {}});
  EXPECT_EQ(price_rounds(network, {{{0, 2, 0, 1, recv}, {1, 2, 1, 2, recv}}}).messages, 2);
  EXPECT_EQ(price_rounds(network, {{{0, 1, 0, 1, recv}, {0, 2, 0, 1, recv}}}).messages, 2);
  EXPECT_EQ(price_rounds(network, {{{0, 1, 0, 1, recv}, {0, 1, 2, 3, recv}}}).messages, 1) << "they travel together";
}

// One who sends two ranges feeds the port as one.
TEST(GenModel, IncastCountsWhoSendsNotWhatIsSent) {
  using enum CollectiveStepKind;
  CollectiveNetwork network = empty_network("switch");
  for (int rank = 0; rank < 3; ++rank) add_rank(network, 0, "r", {0, slow_port, slow_port}, {2, 1e-9}, {});
  EXPECT_EQ(price_rounds(network, {{{0, 2, 0, 10, reduce}, {0, 2, 20, 30, reduce}}}).rounds[0].incast_s, 0);
  EXPECT_GT(price_rounds(network, {{{0, 2, 0, 10, reduce}, {1, 2, 20, 30, reduce}}}).rounds[0].incast_s, 0);
}

}  // namespace
}  // namespace motley
