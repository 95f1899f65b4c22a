#include "motley/cost/collective/collective_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"

namespace motley {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

int add_port(CollectiveNetwork& network, std::string name, double latency_s, double bytes_per_s, const Incast& incast) {
  network.ports.push_back({.name = std::move(name),
                           .latency_s = latency_s,
                           .bytes_per_s = bytes_per_s,
                           .incast_threshold = static_cast<int>(incast.threshold),
                           .incast_s_per_byte = incast.cost_s_per_byte});
  return static_cast<int>(network.ports.size()) - 1;
}

int add_node(CollectiveNetwork& network, int parent, std::string name, const CollectiveUplink& link,
             const Incast& above, const Incast& own) {
  const int node = static_cast<int>(network.nodes.size());
  CollectiveNode added{.name = std::move(name), .parent = parent};
  if (link.up_bytes_per_s < unlimited || link.down_bytes_per_s < unlimited || link.latency_s > 0) {
    added.up = add_port(network, added.name + " up", link.latency_s, link.up_bytes_per_s, own);
    added.down = add_port(network, added.name + " down", link.latency_s, link.down_bytes_per_s, above);
  }
  network.nodes.push_back(std::move(added));
  network.nodes[at(parent)].children.push_back(node);
  return node;
}

CollectiveUplink uplink_of(const LinkSpeed& speed) {
  const auto or_path = [&](double own) { return own > 0 ? own : speed.bandwidth_bytes_per_s; };
  return {.latency_s = speed.latency_s,
          .up_bytes_per_s = or_path(speed.bandwidth_up_bytes_per_s),
          .down_bytes_per_s = or_path(speed.bandwidth_down_bytes_per_s)};
}

CollectiveUplink half_of(const PathSpeed& path) {
  return {.latency_s = path.latency_s / 2,
          .up_bytes_per_s = path.bandwidth_bytes_per_s,
          .down_bytes_per_s = path.bandwidth_bytes_per_s};
}

Reduction reduction_of(const Cluster& cluster, const Machine& machine) {
  const auto& own = cluster.description.machines[at(machine.description)].reduction;
  return own ? *own : cluster.description.network.reduction.value_or(Reduction{});
}

// A machine's devices below its node. Two of its devices see the whole of the link between them, so that each has a
// port as fast; half of its latency lies at either end.
void add_devices(CollectiveNetwork& network, const Cluster& cluster, const Machine& machine, int node) {
  for (const int device : machine.devices) {
    const CollectiveUplink link =
        machine.devices.size() > 1
            ? half_of(cluster.link(machine.devices[0] == device ? machine.devices[1] : machine.devices[0], device))
            : CollectiveUplink{};
    const int leaf =
        add_rank(network, node, cluster.devices[at(device)].name, link, {}, reduction_of(cluster, machine));
    network.nodes[at(leaf)].rank = device;
  }
}

// Leaves of machines whose only device is the machine.
void add_machine(CollectiveNetwork& network, const Cluster& cluster, const Machine& machine, int parent,
                 const CollectiveUplink& link, const Incast& above) {
  if (machine.devices.size() == 1) {
    const int leaf = add_rank(network, parent, cluster.devices[at(machine.devices[0])].name, link, above,
                              reduction_of(cluster, machine));
    network.nodes[at(leaf)].rank = machine.devices[0];
    return;
  }
  add_devices(network, cluster, machine, add_switch(network, parent, machine.name, link, above, {}));
}

// Leaves were added in the order of the tree: ranks are in that of the cluster.
void number_ranks(CollectiveNetwork& network, const Cluster& cluster) {
  network.leaves.assign(cluster.devices.size(), -1);
  network.reduction.assign(cluster.devices.size(), {});
  for (std::size_t node = 0; node < network.nodes.size(); ++node)
    if (const int rank = network.nodes[node].rank; rank >= 0) {
      network.leaves[at(rank)] = static_cast<int>(node);
      network.reduction[at(rank)] = reduction_of(cluster, cluster.machines[at(cluster.devices[at(rank)].machine)]);
    }
}

void add_mesh(CollectiveNetwork& network, int node, const std::function<PathSpeed(std::size_t, std::size_t)>& speed) {
  const auto children = network.nodes[at(node)].children;
  std::vector<int> mesh(children.size() * children.size(), -1);
  for (std::size_t a = 0; a < children.size(); ++a)
    for (std::size_t b = 0; b < children.size(); ++b) {
      if (a == b) continue;
      const PathSpeed path = speed(a, b);
      mesh[a * children.size() + b] = add_port(
          network, fmt::format("{} to {}", network.nodes[at(children[a])].name, network.nodes[at(children[b])].name),
          path.latency_s, path.bandwidth_bytes_per_s, {});
    }
  network.nodes[at(node)].mesh = std::move(mesh);
}

// Every device sends and receives at most as fast as on its fastest link.
CollectiveNetwork from_matrix(const Cluster& cluster) {
  CollectiveNetwork network = empty_network("network");
  const int devices = static_cast<int>(cluster.devices.size());
  for (int device = 0; device < devices; ++device) {
    CollectiveUplink link{.latency_s = 0, .up_bytes_per_s = 0, .down_bytes_per_s = 0};
    for (int other = 0; other < devices; ++other) {
      if (other == device) continue;
      link.up_bytes_per_s = std::max(link.up_bytes_per_s, cluster.link(device, other).bandwidth_bytes_per_s);
      link.down_bytes_per_s = std::max(link.down_bytes_per_s, cluster.link(other, device).bandwidth_bytes_per_s);
    }
    const int leaf = add_rank(network, 0, cluster.devices[at(device)].name, link, {}, {});
    network.nodes[at(leaf)].rank = device;
  }
  add_mesh(network, 0,
           [&](std::size_t a, std::size_t b) { return cluster.link(static_cast<int>(a), static_cast<int>(b)); });
  number_ranks(network, cluster);
  return network;
}

CollectiveNetwork from_switches(const Cluster& cluster) {
  const auto& switches = cluster.description.switches;
  std::map<std::string, const Switch*> described;
  for (const auto& one : switches) described[one.name] = &one;
  std::string root = switches[0].name;
  while (described.contains(root) && described[root]->uplink) root = described[root]->uplink->to;

  CollectiveNetwork network = empty_network(root);
  std::map<std::string, int> node = {{root, 0}};
  const auto incast_of = [&](const std::string& name) {
    return described.contains(name) ? described[name]->incast.value_or(Incast{}) : Incast{};
  };
  const std::function<int(const std::string&)> place = [&](const std::string& name) {
    if (const auto found = node.find(name); found != node.end()) return found->second;
    const Switch& own = *described[name];
    const int parent = place(own.uplink->to);
    return node[name] = add_switch(network, parent, name, uplink_of(own.uplink->speed), incast_of(own.uplink->to),
                                   incast_of(name));
  };
  std::map<std::string, const Machine*> machines;
  for (const auto& machine : cluster.machines) machines[machine.name] = &machine;
  for (const auto& one : switches) {
    const int parent = place(one.name);
    for (const auto& port : one.ports)
      for (const auto& host : port.hosts) {
        if (!machines.contains(host)) continue;
        add_machine(network, cluster, *machines[host], parent, uplink_of(port.speed), incast_of(one.name));
        machines.erase(host);
      }
  }
  if (!machines.empty())
    throw input_error(fmt::format("machine \"{}\" has no port of any switch", machines.begin()->first),
                      "add it to the ports = [{ hosts = [...] }] of a [[switch]]");
  number_ranks(network, cluster);
  return network;
}

// Whether a [[link]] names machines: then they are joined pair by pair.
bool machines_have_links(const Cluster& cluster) {
  for (const auto& link : cluster.description.links)
    for (const auto& machine : cluster.machines)
      if (link.between[0] == machine.name || link.between[1] == machine.name) return true;
  return false;
}

CollectiveNetwork from_sites(const Cluster& cluster) {
  CollectiveNetwork network = empty_network("network");
  const auto first = [&](const Machine& machine) { return machine.devices.front(); };
  if (machines_have_links(cluster)) {
    for (const auto& machine : cluster.machines) add_machine(network, cluster, machine, 0, {}, {});
    add_mesh(network, 0, [&](std::size_t a, std::size_t b) {
      return cluster.link(first(cluster.machines[a]), first(cluster.machines[b]));
    });
    number_ranks(network, cluster);
    return network;
  }
  std::vector<std::vector<const Machine*>> sites;
  for (const auto& machine : cluster.machines) {
    const auto same =
        std::find_if(sites.begin(), sites.end(), [&](const auto& site) { return site[0]->site == machine.site; });
    if (same == sites.end())
      sites.push_back({&machine});
    else
      same->push_back(&machine);
  }
  for (const auto& site : sites) {
    const int node = sites.size() > 1 ? add_switch(network, 0, site[0]->site, {}, {}, {}) : 0;
    for (const Machine* machine : site)
      add_machine(network, cluster, *machine, node,
                  site.size() > 1
                      ? half_of(cluster.link(first(machine == site[0] ? *site[1] : *site[0]), first(*machine)))
                      : CollectiveUplink{},
                  {});
  }
  if (sites.size() > 1)
    add_mesh(network, 0,
             [&](std::size_t a, std::size_t b) { return cluster.link(first(*sites[a][0]), first(*sites[b][0])); });
  number_ranks(network, cluster);
  return network;
}

}  // namespace

std::vector<int> CollectiveNetwork::path(int from, int to) const {
  std::vector<int> up, down;
  std::vector<int> above;  // of `from`, itself first
  for (int node = leaves[at(from)]; node >= 0; node = nodes[at(node)].parent) above.push_back(node);
  int node = leaves[at(to)], below = -1;
  auto met = above.end();
  while ((met = std::find(above.begin(), above.end(), node)) == above.end()) {
    if (nodes[at(node)].down >= 0) down.push_back(nodes[at(node)].down);
    below = node;
    node = nodes[at(node)].parent;
  }
  for (auto step = above.begin(); step != met; ++step)
    if (nodes[at(*step)].up >= 0) up.push_back(nodes[at(*step)].up);
  const CollectiveNode& meeting = nodes[at(node)];
  if (!meeting.mesh.empty() && met != above.begin()) {
    const auto place = [&](int child) {
      return static_cast<std::size_t>(std::find(meeting.children.begin(), meeting.children.end(), child) -
                                      meeting.children.begin());
    };
    up.push_back(meeting.mesh[place(*(met - 1)) * meeting.children.size() + place(below)]);
  }
  up.insert(up.end(), down.rbegin(), down.rend());
  return up;
}

std::vector<int> CollectiveNetwork::ranks_below() const {
  std::vector<int> below(nodes.size(), 0);
  for (std::size_t node = nodes.size(); node-- > 0;) {  // children come after their parents
    if (nodes[node].rank >= 0) ++below[node];
    if (nodes[node].parent >= 0) below[at(nodes[node].parent)] += below[node];
  }
  return below;
}

bool CollectiveNetwork::has_mesh() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const CollectiveNode& node) { return !node.mesh.empty() && node.children.size() > 2; });
}

std::vector<LinkCapacity> CollectiveNetwork::capacities() const {
  std::vector<LinkCapacity> all(nodes.size());
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto& own = nodes[node];
    if (own.up >= 0) all[node].up = std::min(all[node].up, ports[at(own.up)].bytes_per_s);
    if (own.down >= 0) all[node].down = std::min(all[node].down, ports[at(own.down)].bytes_per_s);
    const std::size_t children = own.children.size();
    for (std::size_t me = 0; me < children && !own.mesh.empty() && children > 1; ++me) {
      double up = 0, down = 0;
      for (std::size_t other = 0; other < children; ++other) {
        if (other == me) continue;
        up += ports[at(own.mesh[me * children + other])].bytes_per_s;
        down += ports[at(own.mesh[other * children + me])].bytes_per_s;
      }
      all[at(own.children[me])] = {up, down};
    }
  }
  return all;
}

CollectiveNetwork empty_network(std::string root) {
  CollectiveNetwork network;
  network.nodes.push_back({.name = std::move(root)});
  return network;
}

int add_switch(CollectiveNetwork& network, int parent, std::string name, const CollectiveUplink& link,
               const Incast& above, const Incast& own) {
  return add_node(network, parent, std::move(name), link, above, own);
}

int add_rank(CollectiveNetwork& network, int parent, std::string name, const CollectiveUplink& link,
             const Incast& above, const Reduction& reduction) {
  const int node = add_node(network, parent, std::move(name), link, above, {});
  network.nodes[at(node)].rank = network.ranks();
  network.leaves.push_back(node);
  network.reduction.push_back(reduction);
  return node;
}

CollectiveNetwork collective_network(const Cluster& cluster) {
  if (cluster.devices.empty()) throw input_error("the cluster has no devices", "add machines with devices");
  if (cluster.description.network.matrix) return from_matrix(cluster);
  return cluster.description.switches.empty() ? from_sites(cluster) : from_switches(cluster);
}

}  // namespace motley
