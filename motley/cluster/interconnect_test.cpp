#include "motley/cluster/interconnect.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

double bytes_per_s(std::string_view type) {
  const auto link = machine_link(type);
  if (!link) throw input_error("not in the catalogue: " + std::string(type));
  EXPECT_EQ(link->latency_s, exchanges_through_host(type) ? 25e-6 : 5e-6) << type;
  return link->bandwidth_bytes_per_s;
}

TEST(MachineLink, OfASwitchedFabricItIsOneDirection) {
  EXPECT_EQ(bytes_per_s("V100-16"), 150e9);  // NVLink 2, 300 GB/s both ways
  EXPECT_EQ(bytes_per_s("H100"), 450e9);
  EXPECT_EQ(bytes_per_s("MI250X"), 400e9);
}

TEST(MachineLink, BridgesOfPairsAreNotAWholeMachines) {
  EXPECT_EQ(bytes_per_s("A6000"), 0.75 * 32e9);
  EXPECT_EQ(bytes_per_s("H100-PCIe"), 0.75 * 64e9);
}

TEST(MachineLink, OtherwiseItIsTheHosts) {
  EXPECT_EQ(bytes_per_s("T4"), 0.75 * 16e9);     // PCIe 3.0 x16
  EXPECT_EQ(bytes_per_s("L4"), 0.75 * 32e9);     // PCIe 4.0 x16
  EXPECT_EQ(bytes_per_s("GH200"), 0.75 * 64e9);  // its NVLink goes to its own CPU
  EXPECT_EQ(bytes_per_s("M1 Max"), 0.75 * 16e9) << "what nothing is said of counts as PCIe 3.0 x16";
}

TEST(MachineLink, GeForceCardsExchangeThroughTheHost) {
  EXPECT_TRUE(exchanges_through_host("4090"));
  EXPECT_FALSE(exchanges_through_host("A6000"));
  EXPECT_FALSE(exchanges_through_host("my chip"));
  EXPECT_EQ(bytes_per_s("RTX 4060 Ti"), 0.75 * 16e9 / 2);  // PCIe 4.0 x8
  EXPECT_EQ(bytes_per_s("RTX 5090"), 0.75 * 64e9 / 2);     // PCIe 5.0 x16
}

TEST(MachineLink, NothingIsKnownOfOtherTypes) { EXPECT_FALSE(machine_link("my chip")); }

}  // namespace
}  // namespace motley
