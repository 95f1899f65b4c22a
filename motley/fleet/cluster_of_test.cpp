#include "motley/fleet/cluster_of.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/agent/gpu_rates.hpp"
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

OfferedDevice measured_gpu(int slot, double bytes_per_s, double upload_bytes_per_s = 25e9) {
  OfferedDevice device = offered_gpu(slot, "NVIDIA RTX A6000", 40 * gib);
  DeviceType rates;
  rates.name = "cuda:0";
  rates.vendor = "nvidia";
  rates.memory_bandwidth_bytes_per_s = bytes_per_s;
  rates.flop_per_s = {{"bf16", 1.5e14}, {"fp32", 3e13}};
  rates.efficiency = {.compute = 1, .bandwidth = 1, .basis = Basis::measured};
  rates.overhead = Overhead{.layer_s = 2e-5, .step_s = 1e-4};
  rates.copies = {upload_bytes_per_s, 26e9, 11e-6};
  device.rates = rates_text(rates);
  return device;
}

TEST(ClusterOfGpus, MeasuredRatesTakeTheCataloguesPlace) {
  const Cluster cluster = planned({measured_gpu(0, 7e11), measured_gpu(1, 6.9e11), measured_gpu(2, 6e11),
                                   offered_gpu(3, "NVIDIA RTX A6000", 40 * gib)});
  EXPECT_THAT(types_of(cluster), ElementsAre("box/0: A6000", "box/1: A6000", "box/2: A6000 (2)", "box/3: A6000 (3)"));
  const DeviceType& measured = cluster.type_of(0);
  EXPECT_EQ(measured.memory_bandwidth_bytes_per_s, 7e11);
  EXPECT_EQ(measured.flop_per_s.at("bf16"), 1.5e14);
  EXPECT_EQ(measured.flop_per_s.at("fp16"), 1.5e14) << "as fast as bf16";
  EXPECT_EQ(measured.efficiency.bandwidth, 1);
  EXPECT_EQ(measured.efficiency.basis, Basis::measured);
  EXPECT_EQ(measured.overhead, (Overhead{2e-5, 1e-4}));
  EXPECT_EQ(copies_of(cluster, 0), (CopyRates{25e9, 26e9, 11e-6}));
  EXPECT_EQ(measured.reserve_bytes, gib);
  EXPECT_EQ(cluster.type_of(2).memory_bandwidth_bytes_per_s, 6e11);
  EXPECT_EQ(cluster.type_of(3).memory_bandwidth_bytes_per_s, find_in_catalogue("A6000")->memory_bandwidth_bytes_per_s);
}

TEST(ClusterOfGpus, ACardInASlowSlotIsATypeOfItsOwn) {
  const Cluster cluster = planned({measured_gpu(0, 7e11), measured_gpu(1, 7e11, 0.8e9), measured_gpu(2, 7e11)});
  EXPECT_THAT(types_of(cluster), ElementsAre("box/0: A6000", "box/1: A6000 (2)", "box/2: A6000"));
  EXPECT_EQ(copies_of(cluster, 1)->upload_bytes_per_s, 0.8e9);
}

TEST(ClusterOfGpus, TheSlowestLinkBetweenThemIsTheMachines) {
  OfferedDevice first = measured_gpu(0, 7e11), second = measured_gpu(1, 7e11);
  first.peers = {{{.slot = 1, .latency_s = 5e-6, .bytes_per_s = 50e9}}};
  second.peers = {{{.slot = 0, .latency_s = 9e-6, .bytes_per_s = 40e9}}};
  EXPECT_EQ(planned({first, second}).link(0, 1), (PathSpeed{9e-6, 40e9}));
  EXPECT_EQ(planned({measured_gpu(0, 7e11), measured_gpu(1, 7e11)}).link(0, 1), (PathSpeed{20e-6, 2e9}));
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
