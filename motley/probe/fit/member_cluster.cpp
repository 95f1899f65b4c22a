#include "motley/probe/fit/member_cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/cost/collective/genmodel_fit.hpp"

namespace motley {
namespace {

constexpr double alike_directions = 0.05;

// What is measured is not known better than to four digits, and reads better so.
double rounded(double value) { return std::stod(fmt::format("{:.3e}", value)); }

LinkSpeed speed_of(double latency_s, double up, double down) {
  LinkSpeed speed{.latency_s = rounded(latency_s)};
  if (std::abs(up / down - 1) <= alike_directions) {
    speed.bandwidth_bytes_per_s = rounded((up + down) / 2);
  } else {
    speed.bandwidth_up_bytes_per_s = rounded(up);
    speed.bandwidth_down_bytes_per_s = rounded(down);
  }
  return speed;
}

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

void set_link(ClusterDescription& description, const std::string& a, const std::string& b, const LinkSpeed& speed) {
  std::erase_if(description.links, [&](const NamedLink& link) {
    return (link.between[0] == a && link.between[1] == b) || (link.between[0] == b && link.between[1] == a);
  });
  description.links.push_back({.between = {a, b}, .speed = speed});
}

const Machine& machine_called(const Cluster& cluster, const std::string& name) {
  const auto found = std::ranges::find(cluster.machines, name, &Machine::name);
  MOTLEY_CHECK(found != cluster.machines.end());
  return *found;
}

void set_matrix(NetworkMatrix& matrix, const Cluster& cluster, const std::vector<std::string>& machines,
                const MemberLink& link) {
  for (const int from : machine_called(cluster, machines[at(link.from)]).devices)
    for (const int to : machine_called(cluster, machines[at(link.to)]).devices) {
      matrix.latency_s[at(from)][at(to)] = rounded(link.latency_s);
      matrix.bandwidth_bytes_per_s[at(from)][at(to)] = rounded(link.rate.bytes_per_s);
    }
}

LinkSpeed port_speed(const MemberPort& port) {
  return speed_of(port.latency_s, port.up_bytes_per_s, port.down_bytes_per_s);
}

// Takes the machine's port away from the hosts that it is described with, and gives it one of its own.
void set_port(std::vector<Switch>& switches, const std::string& machine, const MemberPort& port) {
  for (Switch& one : switches)
    for (SwitchPort& described : one.ports)
      if (std::erase(described.hosts, machine) > 0) {
        std::erase_if(one.ports, [](const SwitchPort& rest) { return rest.hosts.empty(); });
        one.ports.push_back({.hosts = {machine}, .speed = port_speed(port)});
        return;
      }
}

// The root first; members of groups of one have their ports there.
std::vector<Switch> measured_switches(const MemberTree& tree, const std::vector<std::string>& machines) {
  std::vector<Switch> switches(1);
  switches[0].name = "measured";
  std::vector<std::size_t> of_group(tree.uplinks.size(), 0);
  for (int g = 0; tree.groups() > 1 && g < tree.groups(); ++g) {
    if (tree.members_of(g) == 1) continue;
    of_group[at(g)] = switches.size();
    Switch& own = switches.emplace_back();
    own.name = fmt::format("measured-{}", switches.size() - 1);
    own.uplink = SwitchUplink{.to = switches[0].name, .speed = port_speed(tree.uplinks[at(g)])};
  }
  for (std::size_t m = 0; m < machines.size(); ++m)
    switches[of_group[at(tree.group[m])]].ports.push_back({.hosts = {machines[m]}, .speed = port_speed(tree.ports[m])});
  return switches;
}

}  // namespace

std::vector<std::string> machines_of_members(const Cluster& cluster, const std::vector<std::string>& addresses) {
  const auto address_of = [&](const Machine& machine) {
    return cluster.description.machines[at(machine.description)].address;
  };
  std::vector<std::string> machines;
  if (std::ranges::all_of(cluster.machines, [&](const Machine& machine) { return address_of(machine).empty(); })) {
    if (addresses.size() != cluster.machines.size())
      throw input_error(
          fmt::format("{} members for {} machines without addresses", addresses.size(), cluster.machines.size()),
          "give as many members as machines, in their order; or give the machines address = \"10.0.0.5\"");
    for (const Machine& machine : cluster.machines) machines.push_back(machine.name);
    return machines;
  }
  for (const auto& address : addresses) {
    const auto found = std::ranges::find_if(cluster.machines, [&](const Machine& machine) {
      return address_of(machine) == address || address_of(machine) == host_of(address);
    });
    if (found == cluster.machines.end())
      throw input_error(fmt::format("no machine of the cluster has the address of member {}", address),
                        fmt::format("give its [[machine]] address = \"{}\"", host_of(address)));
    machines.push_back(found->name);
  }
  if (std::set<std::string>(machines.begin(), machines.end()).size() != machines.size())
    throw input_error("two members have the address of one machine",
                      "give one member per machine: the probe measures links between machines");
  return machines;
}

ProbedCluster probed_cluster(const Cluster& cluster, const std::vector<std::string>& machines, const MemberFit& fit) {
  MOTLEY_CHECK(static_cast<int>(machines.size()) == fit.members);
  ProbedCluster probed{.description = cluster.description};
  ClusterDescription& description = probed.description;
  for (const MemberLink& link : fit.links) {
    if (description.network.matrix) {
      set_matrix(*description.network.matrix, cluster, machines, link);
    } else if (link.from < link.to) {
      const double back = fit.link(link.to, link.from).rate.bytes_per_s;
      set_link(description, machines[at(link.from)], machines[at(link.to)],
               speed_of(link.latency_s, link.rate.bytes_per_s, back));
    }
  }
  const bool complete = machines.size() == cluster.machines.size(), described = !description.switches.empty();
  if (!fit.tree.fits()) {
    probed.switches = described ? SwitchChange::not_explained : SwitchChange::none;
    return probed;
  }
  if (!described && !complete) return probed;  // a machine without a port would be refused
  if (!described) {
    description.switches = measured_switches(fit.tree, machines);
  } else {
    for (std::size_t m = 0; m < machines.size(); ++m) set_port(description.switches, machines[m], fit.tree.ports[m]);
  }
  probed.switches = described ? SwitchChange::ports : SwitchChange::made;
  if (!fit.incast || !complete || description.switches.size() > 1) return probed;
  probed.incast_refused = fit.incast->largest_error > most_fit_error;
  if (!probed.incast_refused)
    description.switches[0].incast =
        fit.incast->threshold > 0 ? std::optional(Incast{.threshold = fit.incast->threshold,
                                                         .cost_s_per_byte = rounded(fit.incast->cost_s_per_byte)})
                                  : std::nullopt;
  return probed;
}

}  // namespace motley
