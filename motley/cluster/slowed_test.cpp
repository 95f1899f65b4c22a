#include "motley/cluster/slowed.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

Cluster two_kinds() {
  ClusterDescription description;
  description.name = "garage";
  description.device_types = {{.name = "small",
                               .vendor = "cpu",
                               .memory_bytes = 1000,
                               .memory_bandwidth_bytes_per_s = 100,
                               .flop_per_s = {{"fp32", 1000.0}, {"bf16", 2000.0}},
                               .efficiency = {},
                               .overhead = Overhead{.layer_s = 1e-3, .step_s = 2e-3},
                               .reserve_bytes = 0}};
  description.machines.resize(2);
  description.machines[0].name = "box";
  description.machines[0].count = 2;
  description.machines[0].devices = {"small*2"};
  description.machines[1].name = "attic";
  description.machines[1].devices = {"small", "T4"};
  description.network.within_machine = LinkSpeed{.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e9};
  description.network.within_site = LinkSpeed{.latency_s = 1e-3, .bandwidth_bytes_per_s = 1e8};
  description.links = {{.between = {"box-0", "attic"}, .speed = {.latency_s = 5e-3, .bandwidth_bytes_per_s = 1e7}}};
  return resolve(std::move(description), "a test");
}

TEST(SlowedCluster, HasTheSameDevicesAndLinksAndTheSlowOnesAreSlower) {
  const Cluster before = two_kinds();
  const Cluster after = slowed(before, {{"box-1/0", 20}, {"attic/1", 2}, {"cellar/0", 3}});
  ASSERT_EQ(after.devices.size(), before.devices.size());
  for (std::size_t i = 0; i < before.devices.size(); ++i) {
    const int device = static_cast<int>(i);
    const std::string& name = before.devices[i].name;
    EXPECT_EQ(after.devices[i].name, name);
    const double factor = name == "box-1/0" ? 20 : name == "attic/1" ? 2 : 1;
    const DeviceType &was = before.type_of(device), &is = after.type_of(device);
    EXPECT_EQ(is.memory_bytes, was.memory_bytes);
    EXPECT_DOUBLE_EQ(is.memory_bandwidth_bytes_per_s, was.memory_bandwidth_bytes_per_s / factor) << name;
    for (const auto& [data_type, flop_per_s] : was.flop_per_s)
      EXPECT_DOUBLE_EQ(is.flop_per_s.at(data_type), flop_per_s / factor) << name;
    EXPECT_EQ(is.efficiency, was.efficiency);
    ASSERT_EQ(is.overhead.has_value(), was.overhead.has_value());
    if (was.overhead) {
      EXPECT_DOUBLE_EQ(is.overhead->step_s, was.overhead->step_s * factor);
    }
    for (int other = 0; other < std::ssize(before.devices); ++other)
      if (other != device) {
        EXPECT_EQ(after.link(device, other), before.link(device, other)) << name << " " << other;
      }
  }
  EXPECT_EQ(slowed(before, {}).types, before.types);
}

TEST(SlowedCluster, LeavesEmptySlotsEmpty) {
  ClusterDescription description = two_kinds().description;
  description.machines[1].devices = {"empty", "T4", "empty*2", "small"};
  const Cluster before = resolve(std::move(description), "a test");
  const Cluster after = slowed(before, {{"attic/4", 2}});
  ASSERT_EQ(after.devices.size(), before.devices.size());
  for (std::size_t i = 0; i < before.devices.size(); ++i) EXPECT_EQ(after.devices[i].name, before.devices[i].name);
  EXPECT_EQ(before.devices.back().name, "attic/4");
  EXPECT_EQ(after.description.machines.back().devices.size(), 5u);
}

}  // namespace
}  // namespace motley
