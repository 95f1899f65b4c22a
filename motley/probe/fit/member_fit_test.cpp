#include "motley/probe/fit/member_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/base/error.hpp"
#include "motley/cluster/write_cluster.hpp"
#include "motley/cost/collective/collective_network.hpp"
#include "motley/cost/collective/genmodel_fit.hpp"
#include "motley/probe/fit/member_cluster.hpp"

namespace motley {
namespace {

// A network that answers the schedule's exchanges: ports of one switch, or pairs of their own.
struct TestNetwork {
  std::vector<MemberPort> ports;
  int threshold = 0;
  double incast_s_per_byte = 0;
  std::map<MemberPair, double> pairs = {};  // bytes per second; besides the ports
  std::vector<int> group = {};              // of the members, where uplinks join groups
  std::vector<MemberPort> uplinks = {};
  double noise = 0;  // up to so much longer, in turn

  double seconds(const ProbeExchange& exchange) const {
    std::map<int, double> sent, received;
    std::map<int, double> leaving, entering;  // by group
    std::map<int, int> senders;
    double longest = 0, latency_s = 0;
    for (const auto& flow : exchange.flows) {
      const auto bytes = static_cast<double>(flow.bytes);
      sent[flow.from] += bytes;
      received[flow.to] += bytes;
      ++senders[flow.to];
      const auto own = pairs.find({flow.from, flow.to});
      if (own != pairs.end()) longest = std::max(longest, bytes / own->second);
      latency_s = std::max(latency_s, latency(flow.from, flow.to));
      if (crosses(flow.from, flow.to)) {
        leaving[group_of(flow.from)] += bytes;
        entering[group_of(flow.to)] += bytes;
      }
    }
    for (const auto& [member, bytes] : sent) longest = std::max(longest, bytes / port(member).up_bytes_per_s);
    for (const auto& [own, bytes] : leaving) longest = std::max(longest, bytes / uplink(own).up_bytes_per_s);
    for (const auto& [own, bytes] : entering) longest = std::max(longest, bytes / uplink(own).down_bytes_per_s);
    for (const auto& [member, bytes] : received) {
      const int excess = threshold > 0 ? std::max(senders[member] + 1 - threshold, 0) : 0;
      longest = std::max(longest, bytes * (1 / port(member).down_bytes_per_s + incast_s_per_byte * excess));
    }
    return 2 * latency_s + longest;
  }

  MemberMeasurements measure(double seconds_asked = 10) const {
    const int members = static_cast<int>(ports.size());
    MemberMeasurements measured{.members = members, .round_trip_s = {}, .samples = {}, .date = "2026-11-22"};
    for (int a = 0; a < members; ++a)
      for (int b = 0; b < members; ++b) measured.round_trip_s.push_back(a == b ? 0 : 2 * latency(a, b));
    int turn = 0;
    while (const auto next = next_exchange({.members = members, .seconds = seconds_asked}, measured.samples)) {
      const double time_s = seconds(*next) * (1 + noise * (turn++ % 3) / 2);
      measured.samples.push_back({*next, std::vector<double>(next->flows.size(), time_s)});
    }
    return measured;
  }

  int group_of(int member) const { return group[static_cast<std::size_t>(member)]; }
  const MemberPort& uplink(int own) const { return uplinks[static_cast<std::size_t>(own)]; }
  bool crosses(int a, int b) const { return !group.empty() && group_of(a) != group_of(b); }
  double latency(int a, int b) const {
    const double between = crosses(a, b) ? uplink(group_of(a)).latency_s + uplink(group_of(b)).latency_s : 0;
    return port(a).latency_s + port(b).latency_s + between;
  }
  const MemberPort& port(int member) const { return ports[static_cast<std::size_t>(member)]; }
};

const std::vector<MemberPort> unequal{{12.5e6, 12.5e6, 10e-6}, {12.5e6, 12.5e6, 20e-6}, {2.5e6, 1.25e6, 400e-6}};

Cluster described(const std::string& toml) {
  return resolve(read<ClusterDescription>(parse_toml(toml, "test.toml"), "test.toml"), "test.toml");
}

Cluster machines(int count, const std::string& rest = "") {
  return described("format = \"motley.cluster/1\"\n[[machine]]\nname = \"m\"\ncount = " + std::to_string(count) +
                   "\ndevices = [\"RTX 3090\"]\n" + rest);
}

std::vector<std::string> names(const Cluster& cluster) {
  std::vector<std::string> list;
  for (const auto& machine : cluster.machines) list.push_back(machine.name);
  return list;
}

TEST(MemberFit, FindsThePortsOfAStar) {
  for (const double noise : {0.0, 0.03}) {
    const MemberFit fit = fit_members(TestNetwork{.ports = unequal, .noise = noise}.measure(20));
    EXPECT_TRUE(fit.tree.fits()) << fit.tree.link_error << " " << fit.tree.total_error;
    for (std::size_t m = 0; m < unequal.size(); ++m) {
      EXPECT_NEAR(fit.tree.ports[m].up_bytes_per_s / unequal[m].up_bytes_per_s, 1, 0.02 + noise);
      EXPECT_NEAR(fit.tree.ports[m].down_bytes_per_s / unequal[m].down_bytes_per_s, 1, 0.02 + noise);
      EXPECT_NEAR(fit.tree.ports[m].latency_s, unequal[m].latency_s, 1e-9);
    }
    EXPECT_NEAR(fit.link(0, 2).rate.bytes_per_s / 1.25e6, 1, 0.02 + noise);
    EXPECT_NEAR(fit.link(2, 0).rate.bytes_per_s / 2.5e6, 1, 0.02 + noise);
    EXPECT_NEAR(fit.link(0, 2).latency_s, 410e-6, 1e-9);
    EXPECT_EQ(fit.incast->threshold, 0);
    EXPECT_EQ(fit.date, "2026-11-22");
  }
}

// A limited link that was idle passes on at once what it saved up, here once in several times.
TEST(MemberFit, ATimeThatNoOtherConfirmsDoesNotCount) {
  MemberMeasurements measured = TestNetwork{.ports = unequal}.measure(20);
  const auto first =
      std::ranges::find_if(measured.samples, [](const ProbeSample& s) { return s.exchange.series == 1; });
  ProbeSample& largest = *std::prev(first);
  ProbeSample lucky = largest;
  lucky.seconds[0] *= 0.85;
  measured.samples.insert(first, lucky);
  EXPECT_NEAR(fit_members(measured).link(0, 1).rate.bytes_per_s / 12.5e6, 1, 0.02);
  EXPECT_NEAR(fit_members(measured).link(0, 1).rate.error, 0, 1e-9);
  // Where none agree, the best and how far the next is from it.
  measured = TestNetwork{.ports = unequal}.measure(20);
  std::ranges::find_if(measured.samples, [](const ProbeSample& s) { return s.exchange.series == 1; })[-1].seconds[0] *=
      1.2;
  EXPECT_NEAR(fit_members(measured).link(0, 1).rate.bytes_per_s / 12.5e6, 1, 0.02);
  EXPECT_NEAR(fit_members(measured).link(0, 1).rate.error, 0.2, 1e-9);
}

// Four streams that double what is under way once in a round trip, until the link is full.
TEST(MemberFit, TheStartOfStreamsOverALongWayIsNotTheRate) {
  constexpr double bytes_per_s = 62.5e6, round_trip_s = 0.05;
  const auto seconds = [&](double bytes) {
    double under_way = 4 * 14600, sent = 0, time_s = round_trip_s;
    for (; under_way < bytes_per_s * round_trip_s && sent + under_way < bytes; under_way *= 2) {
      sent += under_way;
      time_s += round_trip_s;
    }
    return time_s + (bytes - sent) / std::min(under_way / round_trip_s, bytes_per_s);
  };
  MemberMeasurements measured{
      .members = 2, .round_trip_s = {0, round_trip_s, round_trip_s, 0}, .samples = {}, .date = ""};
  const ProbeSchedule schedule{
      .members = 2, .seconds = 0.5, .pairs_alone = true, .round_trip_s = measured.round_trip_s};
  while (const auto next = next_exchange(schedule, measured.samples))
    measured.samples.push_back({*next, {seconds(static_cast<double>(next->bytes()))}});
  for (const MemberLink& link : fit_links(measured)) EXPECT_NEAR(link.rate.bytes_per_s / bytes_per_s, 1, 0.05);
}

TEST(MemberFit, FindsGroupsBehindUplinks) {
  TestNetwork network{.ports = std::vector<MemberPort>(5, {12.5e6, 12.5e6, 10e-6})};
  network.ports[3] = {6e6, 9e6, 60e-6};  // alone, on the switch above
  network.group = {0, 1, 0, 2, 1};
  network.uplinks = {{6.25e6, 6.25e6, 5e-6}, {8e6, 4e6, 1e-3}, {1e12, 1e12, 0}};
  const MemberFit fit = fit_members(network.measure());
  EXPECT_TRUE(fit.tree.fits()) << fit.tree.link_error << " " << fit.tree.total_error;
  EXPECT_EQ(fit.tree.group, network.group);
  for (const std::size_t g : {0U, 1U}) {
    EXPECT_NEAR(fit.tree.uplinks[g].up_bytes_per_s / network.uplinks[g].up_bytes_per_s, 1, 0.03);
    EXPECT_NEAR(fit.tree.uplinks[g].down_bytes_per_s / network.uplinks[g].down_bytes_per_s, 1, 0.03);
    EXPECT_NEAR(fit.tree.uplinks[g].latency_s, network.uplinks[g].latency_s, 1e-8);
  }
  EXPECT_NEAR(fit.tree.ports[3].up_bytes_per_s / 6e6, 1, 0.03);
  EXPECT_NEAR(fit.tree.ports[3].latency_s, 60e-6, 1e-8);

  const Cluster cluster = machines(5);
  const ProbedCluster probed = probed_cluster(cluster, names(cluster), fit);
  EXPECT_EQ(probed.switches, SwitchChange::made);
  ASSERT_EQ(probed.description.switches.size(), 3U);
  const CollectiveNetwork read = collective_network(described(cluster_toml(probed.description, "test")));
  const auto capacities = read.capacities();
  const auto above = [&](int rank) {
    return capacities[static_cast<std::size_t>(
        read.nodes[static_cast<std::size_t>(read.leaves[static_cast<std::size_t>(rank)])].parent)];
  };
  EXPECT_NEAR(above(2).up / 6.25e6, 1, 0.03);
  EXPECT_NEAR(above(4).up / 8e6, 1, 0.03);
  EXPECT_NEAR(above(4).down / 4e6, 1, 0.03);
}

TEST(MemberFit, PairsWithLinksOfTheirOwnAreNoStar) {
  TestNetwork mesh{.ports = std::vector<MemberPort>(3, {1e9, 1e9, 1e-3})};
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) mesh.pairs[{a, b}] = 5e7;
  const MemberFit fit = fit_members(mesh.measure());
  EXPECT_FALSE(fit.tree.fits());
  for (const auto& link : fit.links) EXPECT_NEAR(link.rate.bytes_per_s / 5e7, 1, 0.02);
}

TEST(MemberFit, FindsIncastAndItsThreshold) {
  const TestNetwork network{
      .ports = std::vector<MemberPort>(7, {1.25e9, 1.25e9, 25e-6}), .threshold = 4, .incast_s_per_byte = 1e-10};
  const MemberFit fit = fit_members(network.measure(60));
  ASSERT_TRUE(fit.incast);
  EXPECT_TRUE(fit.tree.fits());
  EXPECT_EQ(fit.incast->threshold, 4);
  EXPECT_NEAR(fit.incast->cost_s_per_byte / 1e-10, 1, 0.05);
  EXPECT_LT(fit.incast->largest_error, 0.02);
  EXPECT_EQ(fit.incast->measurements, 4 * 5);
}

TEST(MemberFit, LatenciesThatAreNoSumsAreNoStar) {
  TestNetwork star{.ports = std::vector<MemberPort>(4, {1e8, 1e8, 1e-4})};
  MemberMeasurements measured = star.measure();
  EXPECT_TRUE(fit_members(measured).tree.fits());
  for (const auto& [a, b] : {MemberPair{0, 1}, MemberPair{2, 3}})  // two sites, 20 ms apart
    measured.round_trip_s[static_cast<std::size_t>(a * 4 + b)] =
        measured.round_trip_s[static_cast<std::size_t>(b * 4 + a)] = 40e-3;
  EXPECT_FALSE(fit_members(measured).tree.fits());
}

TEST(MemberFit, RefusesWhatIsNoMeasurement) {
  const MemberMeasurements good = TestNetwork{.ports = unequal}.measure();
  auto without_flow = good;
  std::erase_if(without_flow.samples, [](const ProbeSample& one) { return one.exchange.series == 3; });
  EXPECT_THROW(fit_members(without_flow), Error);
  auto lying = good;
  lying.samples[2].seconds[0] = std::nan("");
  EXPECT_THROW(fit_members(lying), Error);
  lying = good;
  lying.samples[2].exchange.flows[0].to = 3;
  EXPECT_THROW(fit_members(lying), Error);
  lying = good;
  lying.samples[2].seconds.pop_back();
  EXPECT_THROW(fit_members(lying), Error);
  lying = good;
  lying.round_trip_s.pop_back();
  EXPECT_THROW(fit_members(lying), Error);
  lying = good;
  lying.round_trip_s[1] = 0;
  EXPECT_THROW(fit_members(lying), Error);
}

TEST(ProbedCluster, AStarIsASwitchAndLinks) {
  const Cluster cluster = machines(3);
  const MemberFit fit = fit_members(TestNetwork{.ports = unequal}.measure());
  const ProbedCluster probed = probed_cluster(cluster, names(cluster), fit);
  EXPECT_EQ(probed.switches, SwitchChange::made);
  EXPECT_EQ(probed.description.links.size(), 3U);
  // What is written says the same when it is read.
  const Cluster again = described(cluster_toml(probed.description, "test"));
  EXPECT_NEAR(again.link(0, 2).bandwidth_bytes_per_s / 1.25e6, 1, 0.02);
  EXPECT_NEAR(again.link(2, 0).bandwidth_bytes_per_s / 2.5e6, 1, 0.02);
  const CollectiveNetwork network = collective_network(again);
  EXPECT_FALSE(network.has_mesh());
  const auto capacities = network.capacities();
  EXPECT_NEAR(capacities[static_cast<std::size_t>(network.leaves[2])].up / 2.5e6, 1, 0.02);
  EXPECT_NEAR(capacities[static_cast<std::size_t>(network.leaves[2])].down / 1.25e6, 1, 0.02);
}

TEST(ProbedCluster, OnlyWhatWasMeasuredIsReplaced) {
  const std::string rest =
      "[[link]]\nbetween = [\"m-1\", \"m-0\"]\nlatency = \"1 s\"\nbandwidth = \"1 B/s\"\n"
      "[[link]]\nbetween = [\"m-0\", \"m-3\"]\nlatency = \"7 ms\"\nbandwidth = \"7 MB/s\"\n";
  const Cluster cluster = machines(4, rest);
  const MemberFit fit = fit_members(TestNetwork{.ports = unequal}.measure());
  const ProbedCluster probed = probed_cluster(cluster, {"m-0", "m-1", "m-2"}, fit);
  EXPECT_EQ(probed.switches, SwitchChange::none);  // m-3 would have no port
  EXPECT_EQ(probed.description.links.size(), 4U);
  const Cluster again = resolve(probed.description, "probed");
  EXPECT_NEAR(again.link(0, 1).bandwidth_bytes_per_s / 12.5e6, 1, 0.02);
  EXPECT_EQ(again.link(0, 3).bandwidth_bytes_per_s, 7e6);
}

TEST(ProbedCluster, DescribedSwitchesKeepTheOthersPorts) {
  const std::string rest =
      "[[switch]]\nname = \"rack\"\nuplink = { to = \"core\", latency = \"1 us\", bandwidth = \"1 GB/s\" }\n"
      "ports = [{ hosts = [\"m-0\", \"m-1\", \"m-3\"], latency = \"1 us\", bandwidth = \"9 MB/s\" }]\n"
      "[[switch]]\nname = \"core\"\nports = [{ hosts = [\"m-2\"], latency = \"1 us\", bandwidth = \"9 MB/s\" }]\n";
  const Cluster cluster = machines(4, rest);
  const MemberFit fit = fit_members(TestNetwork{.ports = unequal}.measure());
  const ProbedCluster probed = probed_cluster(cluster, {"m-0", "m-1", "m-2"}, fit);
  EXPECT_EQ(probed.switches, SwitchChange::ports);
  const CollectiveNetwork network = collective_network(resolve(probed.description, "probed"));
  const auto capacities = network.capacities();
  const auto up = [&](int rank) {
    return capacities[static_cast<std::size_t>(network.leaves[static_cast<std::size_t>(rank)])].up;
  };
  EXPECT_NEAR(up(0) / 12.5e6, 1, 0.02);
  EXPECT_NEAR(up(2) / 2.5e6, 1, 0.02);
  EXPECT_EQ(up(3), 9e6);
  EXPECT_FALSE(network.has_mesh());

  TestNetwork mesh{.ports = std::vector<MemberPort>(3, {1e9, 1e9, 1e-3})};
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) mesh.pairs[{a, b}] = 5e7;
  const ProbedCluster unexplained = probed_cluster(cluster, {"m-0", "m-1", "m-2"}, fit_members(mesh.measure()));
  EXPECT_EQ(unexplained.switches, SwitchChange::not_explained);
  EXPECT_EQ(unexplained.description.switches, cluster.description.switches);
}

TEST(ProbedCluster, AMatrixTakesTheFiguresInPlace) {
  Cluster cluster = machines(4);
  NetworkMatrix matrix;
  matrix.latency_s.assign(4, std::vector<double>(4, 1));
  matrix.bandwidth_bytes_per_s.assign(4, std::vector<double>(4, 77));
  cluster.description.network.matrix = matrix;
  const MemberFit fit = fit_members(TestNetwork{.ports = unequal}.measure());
  const ProbedCluster probed = probed_cluster(cluster, {"m-0", "m-1", "m-2"}, fit);
  EXPECT_TRUE(probed.description.links.empty());
  const Cluster again = resolve(probed.description, "probed");
  EXPECT_NEAR(again.link(2, 1).bandwidth_bytes_per_s / 2.5e6, 1, 0.02);
  EXPECT_NEAR(again.link(1, 2).bandwidth_bytes_per_s / 1.25e6, 1, 0.02);
  EXPECT_EQ(again.link(1, 3).bandwidth_bytes_per_s, 77);
}

TEST(ProbedCluster, IncastThatIsNotUnderstoodIsNotWritten) {
  const Cluster cluster = machines(3);
  MemberFit fit = fit_members(
      TestNetwork{.ports = std::vector<MemberPort>(3, {1e8, 1e8, 1e-5}), .threshold = 2, .incast_s_per_byte = 2e-9}
          .measure());
  const auto written = probed_cluster(cluster, names(cluster), fit);
  ASSERT_TRUE(written.description.switches.at(0).incast);
  EXPECT_EQ(written.description.switches[0].incast->threshold, 2);
  EXPECT_NEAR(written.description.switches[0].incast->cost_s_per_byte / 2e-9, 1, 0.05);
  fit.incast->largest_error = 1.01 * most_fit_error;
  const auto refused = probed_cluster(cluster, names(cluster), fit);
  EXPECT_TRUE(refused.incast_refused);
  EXPECT_FALSE(refused.description.switches.at(0).incast);
}

TEST(ProbedCluster, MembersAreMachinesByAddressOrByPlace) {
  EXPECT_EQ(machines_of_members(machines(2), {"10.0.0.1:1", "10.0.0.2:1"}), (std::vector<std::string>{"m-0", "m-1"}));
  EXPECT_THROW(machines_of_members(machines(3), {"10.0.0.1:1", "10.0.0.2:1"}), Error);
  const std::string other = "[[machine]]\nname = \"n\"\naddress = \"10.0.0.9\"\ndevices = [\"RTX 3090\"]\n";
  EXPECT_EQ(machines_of_members(machines(1, other), {"10.0.0.9:4711"}), std::vector<std::string>{"n"});
  EXPECT_THROW(machines_of_members(machines(1, other), {"10.0.0.8:4711"}), Error);
  EXPECT_THROW(machines_of_members(machines(1, other), {"10.0.0.9:4711", "10.0.0.9:4712"}), Error);
}

}  // namespace
}  // namespace motley
