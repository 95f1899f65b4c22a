#include "motley/plan/gradient_sync.hpp"

#include <gtest/gtest.h>

#include "motley/base/value.hpp"

namespace motley {
namespace {

// Two sites: two machines of two devices and one of one; a machine of one.
Cluster two_sites() {
  const Value toml = parse_toml(R"(
format = "motley.cluster/1"
[[machine]]
name = "a"
count = 2
site = "here"
devices = ["card*2"]
[[machine]]
name = "b"
site = "here"
devices = ["card"]
[[machine]]
name = "c"
site = "there"
devices = ["card"]
[[device_type]]
name = "card"
memory = "2 GiB"
memory_bandwidth = "1 GB/s"
flops = { fp32 = "1 GFLOP/s" }
)",
                                "c");
  return resolve(read<ClusterDescription>(toml, "c"), "c");
}

// (0 1) as text.
std::string text_of(const CollectiveGroup& group) {
  if (group.members.empty()) return std::to_string(group.rank);
  std::string text;
  for (const CollectiveGroup& member : group.members) text += (text.empty() ? "" : " ") + text_of(member);
  return group.pattern == GroupPattern::ring ? "[" + text + "]" : "(" + text + ")";
}

TEST(GradientSync, GroupsAreMachinesThenSites) {
  const Cluster cluster = two_sites();  // devices 0 1, 2 3, 4, 5
  const auto text = [&](SyncAlgorithm algorithm, const std::vector<int>& devices) {
    return text_of(sync_group(cluster, algorithm, devices));
  };
  EXPECT_EQ(text(SyncAlgorithm::hierarchical, {0, 1, 2, 3, 4, 5}), "(((0 1) (2 3) 4) 5)");
  EXPECT_EQ(text(SyncAlgorithm::hierarchical, {5, 0, 4}), "((1 2) 0)") << "ranks, not devices";
  EXPECT_EQ(text(SyncAlgorithm::hierarchical, {0, 1}), "(0 1)");
  EXPECT_EQ(text(SyncAlgorithm::hierarchical, {0, 2}), "(0 1)");
  EXPECT_EQ(text(SyncAlgorithm::direct, {0, 1, 4}), "(0 1 2)");
  EXPECT_EQ(text(SyncAlgorithm::ring, {4, 0, 2}), "[1 2 0]");
}

}  // namespace
}  // namespace motley
