#include <gtest/gtest.h>

#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

// Two machines at home (two devices each), one at work.
const std::string base = R"(format = "motley.cluster/1"
machine = [
  {name = "a", site = "home", devices = ["A6000*2"]},
  {name = "b", site = "home", devices = ["A6000*2"], link = {latency = "3 us", bandwidth = "30 GB/s"}},
  {name = "c", site = "work", devices = ["A6000"]},
]
)";
constexpr int a0 = 0, a1 = 1, b0 = 2, b1 = 3, c0 = 4;

Cluster cluster_with(const std::string& more) {
  return resolve(read<ClusterDescription>(parse_toml(base + more, "c.toml"), "c.toml"), "c.toml");
}

TEST(Links, DefaultsWhereNothingIsDescribed) {
  const Cluster cluster = cluster_with("");
  EXPECT_EQ(cluster.link(a0, a1), (PathSpeed{10e-6, 20e9}));
  EXPECT_EQ(cluster.link(a0, b0), (PathSpeed{0.2e-3, 1.25e9}));
  EXPECT_DOUBLE_EQ(cluster.link(a0, b0).seconds(1.25e9), 1.0002);
}

TEST(Links, CardsThatDoNotReachEachOthersMemoryExchangeThroughTheHost) {
  const auto link_of = [](const std::string& machine) {
    const std::string text = "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\n" + machine;
    return resolve(read<ClusterDescription>(parse_toml(text, "c.toml"), "c.toml"), "c.toml").link(0, 1);
  };
  EXPECT_EQ(link_of("devices = [\"RTX 4090*2\"]"), (PathSpeed{25e-6, 10e9}));
  EXPECT_EQ(link_of("devices = [\"A6000*2\", \"RTX 3060\"]"), (PathSpeed{25e-6, 10e9}));
  EXPECT_EQ(link_of("devices = [\"RTX 4090*2\"]\nlink = { latency = \"3 us\", bandwidth = \"30 GB/s\" }"),
            (PathSpeed{3e-6, 30e9}));
}

TEST(Links, BetweenSitesThereIsNoDefault) {
  try {
    cluster_with("").link(b1, c0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_STREQ(error.what(), "nothing describes the link between the sites \"home\" and \"work\" (b/1 to c/0)");
    EXPECT_EQ(error.hint(), "add [[link]] between = [\"home\", \"work\"], or [network] between_sites");
  }
}

TEST(Links, TheMoreSpecificDescriptionWins) {
  std::string text = R"([network]
within_machine = {latency = "1 us", bandwidth = "1 GB/s"}
within_site = {latency = "2 us", bandwidth = "2 GB/s"}
between_sites = {latency = "4 us", bandwidth = "4 GB/s"}
)";
  const Cluster by_distance = cluster_with(text);
  EXPECT_EQ(by_distance.link(a0, a1), (PathSpeed{1e-6, 1e9}));
  EXPECT_EQ(by_distance.link(b0, b1), (PathSpeed{3e-6, 30e9}));  // the machine's own
  EXPECT_EQ(by_distance.link(a0, b0), (PathSpeed{2e-6, 2e9}));
  EXPECT_EQ(by_distance.link(a0, c0), (PathSpeed{4e-6, 4e9}));

  text += "[[link]]\nbetween = [\"work\", \"home\"]\nlatency = \"5 us\"\nbandwidth = \"5 GB/s\"\n";
  text += "[[link]]\nbetween = [\"home\", \"home\"]\nlatency = \"6 us\"\nbandwidth = \"6 GB/s\"\n";
  const Cluster by_site = cluster_with(text);
  EXPECT_EQ(by_site.link(a0, c0), (PathSpeed{5 * 1e-6, 5e9}));
  EXPECT_EQ(by_site.link(c0, b1), (PathSpeed{5 * 1e-6, 5e9}));
  EXPECT_EQ(by_site.link(a1, b1), (PathSpeed{6e-6, 6e9}));
  EXPECT_EQ(by_site.link(a0, a1), (PathSpeed{1e-6, 1e9}));

  text += "[[link]]\nbetween = [\"a\", \"b\"]\nlatency = \"7 us\"\nbandwidth = \"7 GB/s\"\n";
  text += "[[link]]\nbetween = [\"a\", \"c\"]\nlatency = \"8 us\"\nbandwidth = \"8 GB/s\"\n";
  const Cluster by_machine = cluster_with(text);
  EXPECT_EQ(by_machine.link(a1, b1), (PathSpeed{7e-6, 7e9}));
  EXPECT_EQ(by_machine.link(a1, c0), (PathSpeed{8e-6, 8e9}));
  EXPECT_EQ(by_machine.link(b1, c0), (PathSpeed{5 * 1e-6, 5e9}));

  text += "[network.matrix]\nlatency_ms = [[0,1,2,3,4],[1,0,1,1,1],[1,1,0,1,1],[1,1,1,0,1],[9,1,1,1,0]]\n";
  text += "bandwidth_gbit_s = [[0,8,16,24,32],[1,0,1,1,1],[1,1,0,1,1],[1,1,1,0,1],[72,1,1,1,0]]\n";
  const Cluster by_matrix = cluster_with(text);
  EXPECT_EQ(by_matrix.link(a0, a1), (PathSpeed{1e-3, 1e9}));
  EXPECT_EQ(by_matrix.link(a0, c0), (PathSpeed{4e-3, 4e9}));
  EXPECT_EQ(by_matrix.link(c0, a0), (PathSpeed{9 * 1e-3, 9e9}));
}

TEST(Links, DirectionsMayDiffer) {
  const Cluster cluster = cluster_with(R"(
[[link]]
between = ["home", "work"]
latency = "1 ms"
bandwidth_up = "5 GB/s"
bandwidth_down = "2 GB/s"
[[link]]
between = ["c", "a"]
latency = "1 ms"
bandwidth = "3 GB/s"
bandwidth_down = "1 GB/s"
[network]
within_site = {latency = "1 ms", bandwidth = "9 GB/s", bandwidth_up = "4 GB/s"}
)");
  EXPECT_EQ(cluster.link(b0, c0).bandwidth_bytes_per_s, 5e9);
  EXPECT_EQ(cluster.link(c0, b0).bandwidth_bytes_per_s, 2e9);
  EXPECT_EQ(cluster.link(c0, a0).bandwidth_bytes_per_s, 3e9);
  EXPECT_EQ(cluster.link(a0, c0).bandwidth_bytes_per_s, 1e9);
  EXPECT_EQ(cluster.link(a0, b0).bandwidth_bytes_per_s, 4e9);  // the sender's way out is the narrow one
  EXPECT_EQ(cluster.link(b0, a0).bandwidth_bytes_per_s, 4e9);
}

// A message leaves by the way up and arrives by the way down: the narrower one counts, whichever it is.
TEST(Links, BetweenEqualsTheNarrowerWayCounts) {
  const Cluster up_wider = cluster_with(R"(
[network]
within_machine = {latency = "1 us", bandwidth_up = "9 GB/s", bandwidth_down = "4 GB/s"}
within_site = {latency = "1 ms", bandwidth_up = "5 GB/s", bandwidth_down = "2 GB/s"}
)");
  EXPECT_EQ(up_wider.link(a0, a1).bandwidth_bytes_per_s, 4e9);
  EXPECT_EQ(up_wider.link(a0, b0).bandwidth_bytes_per_s, 2e9);
  EXPECT_EQ(up_wider.link(b0, a0).bandwidth_bytes_per_s, 2e9);
  const Cluster named = cluster_with(R"(
[[link]]
between = ["home", "home"]
latency = "1 ms"
bandwidth_up = "5 GB/s"
bandwidth_down = "2 GB/s"
)");
  EXPECT_EQ(named.link(a0, b0).bandwidth_bytes_per_s, 2e9);
  EXPECT_EQ(named.link(b0, a0).bandwidth_bytes_per_s, 2e9);
}

TEST(Links, OneStreamMayReachLess) {
  const Cluster cluster = cluster_with(R"(
[[link]]
between = ["home", "work"]
latency = "1 ms"
bandwidth = "5 GB/s"
per_flow_bandwidth = "1 GB/s"
[[link]]
between = ["a", "b"]
latency = "1 ms"
bandwidth = "1 GB/s"
per_flow_bandwidth = "5 GB/s"
)");
  EXPECT_EQ(cluster.link(a0, c0).bandwidth_bytes_per_s, 1e9);
  EXPECT_EQ(cluster.link(a0, b0).bandwidth_bytes_per_s, 1e9);
}

}  // namespace
}  // namespace motley
