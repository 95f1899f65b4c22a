#include "motley/fleet/cluster_of.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t gib = std::int64_t{1} << 30;

OfferedDevice offered_gpu(int slot, const std::string& kind, std::int64_t memory_bytes) {
  return {.kind = kind,
          .memory_bytes = memory_bytes,
          .slot = slot,
          .vendor = "nvidia",
          .backend = "cuda:0",
          .uuid = "GPU-" + std::to_string(slot),
          .total_bytes = 48 * gib,
          .free_bytes = 47 * gib};
}

OfferedDevice offered_processor(int slot) {
  return {.kind = "AMD EPYC 7B13", .memory_bytes = 8 * gib, .bytes_per_s = 2e10, .flop_per_s = 1e12, .slot = slot};
}

Cluster planned(const std::vector<OfferedDevice>& box, const std::vector<OfferedDevice>& attic = {}) {
  std::vector<MachineStatus> members{{"box", "10.0.0.5", box}};
  if (!attic.empty()) members.push_back({"attic", "10.0.0.6", attic});
  return cluster_of(members, {}, assumed_network());
}

std::vector<std::string> types_of(const Cluster& cluster) {
  std::vector<std::string> types;
  for (int device = 0; device < std::ssize(cluster.devices); ++device)
    types.push_back(cluster.devices[static_cast<std::size_t>(device)].name + ": " + cluster.type_of(device).name);
  return types;
}

TEST(ClusterOfGpus, EqualOnesAreOneTypeWithTheLeastMemory) {
  const Cluster cluster = planned({offered_gpu(0, "NVIDIA RTX A6000", 46 * gib),
                                   offered_gpu(1, "NVIDIA RTX A6000", 44 * gib), offered_processor(2)});
  EXPECT_THAT(types_of(cluster), ElementsAre("box/0: A6000", "box/1: A6000", "box/2: processor 1"));
  const DeviceType* known = find_in_catalogue("A6000");
  ASSERT_NE(known, nullptr);
  DeviceType expected = *known;
  expected.memory_bytes = 44 * gib;
  expected.reserve_bytes = gib;
  EXPECT_EQ(cluster.type_of(0), expected);
  EXPECT_EQ(cluster.type_of(2).vendor, "cpu");
  EXPECT_EQ(cluster.type_of(2).reserve_bytes, 0);
}

TEST(ClusterOfGpus, OneThatOthersUseIsATypeOfItsOwn) {
  const Cluster cluster = planned({offered_gpu(0, "NVIDIA RTX A6000", 20 * gib), offered_gpu(1, "A6000", 45 * gib),
                                   offered_gpu(3, "NVIDIA RTX A6000", 45 * gib)},
                                  {offered_gpu(0, "NVIDIA RTX A6000", 44 * gib)});
  EXPECT_EQ(cluster.devices[2].name, "box/3") << "a slot that is empty stays so";
  EXPECT_EQ(cluster.type_of(0).memory_bytes, 20 * gib);
  EXPECT_EQ(cluster.type_of(1).memory_bytes, 45 * gib);
  EXPECT_EQ(cluster.type_of(2).memory_bytes, 44 * gib);
  EXPECT_EQ(cluster.devices[2].type, cluster.devices[3].type) << "on another machine, too";
  EXPECT_EQ(cluster.types.size(), 3u);
  for (const DeviceType& type : cluster.types)
    EXPECT_EQ(type.memory_bandwidth_bytes_per_s, find_in_catalogue("A6000")->memory_bandwidth_bytes_per_s);
}

TEST(ClusterOfGpus, MeasuredRatesTakeTheCataloguesPlace) {
  OfferedDevice fast = offered_gpu(0, "NVIDIA RTX A6000", 40 * gib),
                same = offered_gpu(1, "NVIDIA RTX A6000", 40 * gib),
                slow = offered_gpu(2, "NVIDIA RTX A6000", 40 * gib);
  fast.bytes_per_s = 7e11;
  same.bytes_per_s = 6.9e11;
  slow.bytes_per_s = 6e11;
  for (OfferedDevice* device : {&fast, &same, &slow}) device->flop_per_s = 1.5e14;
  const Cluster cluster = planned({fast, same, slow});
  EXPECT_THAT(types_of(cluster), ElementsAre("box/0: A6000", "box/1: A6000", "box/2: A6000 (2)"));
  EXPECT_EQ(cluster.type_of(0).memory_bandwidth_bytes_per_s, 7e11);
  EXPECT_EQ(cluster.type_of(2).memory_bandwidth_bytes_per_s, 6e11);
  EXPECT_EQ(cluster.type_of(2).flop_per_s.at("bf16"), 1.5e14);
  EXPECT_EQ(cluster.type_of(2).reserve_bytes, gib);
}

TEST(ClusterOfGpus, ASliceHasItsShareOfTheCard) {
  const DeviceType* whole = find_in_catalogue("NVIDIA H100 80GB HBM3");
  ASSERT_NE(whole, nullptr);
  OfferedDevice slice = offered_gpu(0, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9 * gib);
  slice.total_bytes = whole->memory_bytes / 8;
  const Cluster cluster = planned({slice});
  EXPECT_EQ(cluster.types[0].name, whole->name + " slice");
  EXPECT_NEAR(cluster.types[0].memory_bandwidth_bytes_per_s, whole->memory_bandwidth_bytes_per_s / 8, 1e6);
  EXPECT_NEAR(cluster.types[0].flop_per_s.at("bf16"), whole->flop_per_s.at("bf16") / 8, 1e9);
  EXPECT_EQ(cluster.types[0].efficiency.basis, Basis::guess);
}

TEST(ClusterOfGpus, OneOfWhichNothingIsKnownIsRefused) {
  EXPECT_THROW(planned({offered_gpu(0, "NVIDIA Abacus 3000", 9 * gib)}), Error);
}

}  // namespace
}  // namespace motley
