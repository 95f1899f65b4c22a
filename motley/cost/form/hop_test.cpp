#include "motley/cost/form/hop.hpp"

#include <gtest/gtest.h>

#include <array>

#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

Cluster pair_with(const std::string& vendor, const std::string& type_keys, const std::string& machine_keys = "",
                  const std::string& bandwidth = "1.25 GB/s") {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "a"
devices = ["card*2", "core"]
)" + machine_keys + R"(
[[machine]]
name = "b"
devices = ["card"]
[[link]]
between = ["a", "b"]
latency = "100 us"
bandwidth = ")" + bandwidth +
                    R"("
[network]
within_machine = { latency = "10 us", bandwidth = "8 GB/s" }
[[device_type]]
name = "card"
memory = "8 GiB"
memory_bandwidth = "500 GB/s"
flops = { fp16 = "50 TFLOP/s" }
vendor = ")" + vendor +
                    "\"\n" + type_keys + R"(
[[device_type]]
name = "core"
vendor = "cpu"
memory = "8 GiB"
memory_bandwidth = "20 GB/s"
flops = { fp32 = "1 TFLOP/s" }
)");
}

constexpr int card = 0, other_card = 1, core = 2, far_card = 3;

HopSpeed link_alone(const Cluster& cluster, int from, int to) {
  const PathSpeed link = cluster.link(from, to);
  return {.latency_s = link.latency_s, .bandwidth_bytes_per_s = link.bandwidth_bytes_per_s};
}

TEST(Hop, IsTheLinkAloneBetweenProcessors) {
  const Cluster cluster = pair_with("cpu", "");
  EXPECT_EQ(hop_speed(cluster, card, far_card), link_alone(cluster, card, far_card));
  EXPECT_EQ(hop_speed(cluster, card, core), link_alone(cluster, card, core));
}

TEST(Hop, HasACopyAtEachEndWithMemoryOfItsOwn) {
  const Cluster cluster =
      pair_with("nvidia", "copies = { upload = \"1 GB/s\", download = \"4 GB/s\", latency = \"12 us\" }");
  const HopSpeed hop = hop_speed(cluster, card, far_card);
  EXPECT_DOUBLE_EQ(hop.latency_s, 124e-6);
  EXPECT_DOUBLE_EQ(hop.bandwidth_bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(hop.fill_s_per_byte, 1 / 4e9 + 1 / 1.25e9);
  EXPECT_TRUE(hop.by_copies);
  EXPECT_DOUBLE_EQ(hop.seconds(1e5), 124e-6 + 1e5 * (1 / 1e9 + 1 / 4e9 + 1 / 1.25e9)) << "one piece passes all in turn";
  EXPECT_DOUBLE_EQ(hop.seconds(1e9), 124e-6 + 1 + hop_piece_bytes * (1 / 4e9 + 1 / 1.25e9));
  EXPECT_EQ(hop_speed(cluster, card, other_card), link_alone(cluster, card, other_card)) << "from memory to memory";
  const HopSpeed to_processor = hop_speed(cluster, card, core), from_processor = hop_speed(cluster, core, card);
  EXPECT_DOUBLE_EQ(to_processor.bandwidth_bytes_per_s, 4e9);
  EXPECT_DOUBLE_EQ(from_processor.bandwidth_bytes_per_s, 1e9);
  EXPECT_DOUBLE_EQ(from_processor.fill_s_per_byte, 1 / 8e9);
}

TEST(Hop, CopiesAreThoseOfTheTypeThenOfTheHostThenUsual) {
  const auto rates = [](const Cluster& cluster) { return *copies_of(cluster, card); };
  EXPECT_EQ(rates(pair_with("nvidia", "")), (CopyRates{12e9, 12e9, 10e-6}));
  EXPECT_EQ(rates(pair_with("nvidia", "", "host = { upload = \"20 GB/s\" }")), (CopyRates{20e9, 20e9, 10e-6}));
  EXPECT_EQ(rates(pair_with("nvidia", "copies = { upload = \"3 GB/s\" }", "host = { upload = \"20 GB/s\" }")),
            (CopyRates{3e9, 3e9, 10e-6}));
  EXPECT_EQ(copies_of(pair_with("cpu", ""), card), std::nullopt);
}

// Pieces that pass one part of the way after another: each part has one at a time.
double arrival_s(const std::array<double, 3>& bytes_per_s, const std::array<double, 3>& latency_s, double bytes) {
  std::array<double, 3> free_s{};
  double last_s = 0;
  for (double left = bytes; left > 0; left -= hop_piece_bytes) {
    double at_s = 0;
    for (std::size_t part = 0; part < 3; ++part) {
      free_s[part] = std::max(free_s[part], at_s) + std::min(left, hop_piece_bytes) / bytes_per_s[part];
      at_s = free_s[part] + latency_s[part];
    }
    last_s = at_s;
  }
  return last_s;
}

TEST(Hop, TakesAsLongAsPiecesThatPassItsParts) {
  struct Rates {
    const char *down, *link, *up;
    double down_bytes_per_s, link_bytes_per_s, up_bytes_per_s;
  };
  const std::array<Rates, 4> all = {{{"25 GB/s", "125 MB/s", "25 GB/s", 25e9, 125e6, 25e9},
                                     {"12 GB/s", "1.25 GB/s", "12 GB/s", 12e9, 1.25e9, 12e9},
                                     {"25 GB/s", "12.5 GB/s", "6 GB/s", 25e9, 12.5e9, 6e9},
                                     {"800 MB/s", "3.125 GB/s", "900 MB/s", 0.8e9, 3.125e9, 0.9e9}}};
  for (const Rates& rates : all)
    for (const double bytes : {131072.0, 3.5 * (1 << 20), 32.0 * (1 << 20)}) {
      const Cluster cluster = pair_with("nvidia",
                                        "copies = { upload = \"" + std::string(rates.up) + "\", download = \"" +
                                            rates.down + "\", latency = \"15 us\" }",
                                        "", rates.link);
      const double reference_s = arrival_s({rates.down_bytes_per_s, rates.link_bytes_per_s, rates.up_bytes_per_s},
                                           {15e-6, 100e-6, 15e-6}, bytes);
      EXPECT_NEAR(hop_speed(cluster, card, far_card).seconds(bytes), reference_s, 0.1 * reference_s)
          << rates.down << " " << rates.link << " " << rates.up << " " << bytes;
    }
}

TEST(Hop, OfGroupsIsTheFastestPairs) {
  const Cluster cluster = pair_with("nvidia", "copies = { upload = \"1 GB/s\", download = \"4 GB/s\" }");
  EXPECT_EQ(best_hop(cluster, {card, core}, {far_card}, 1e9), hop_speed(cluster, core, far_card))
      << "a processor has nothing to copy";
}

}  // namespace
}  // namespace motley
