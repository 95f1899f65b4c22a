#include "motley/fleet/cluster_of.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace motley {

namespace {

// Of the rates that an agent measures, what the engine's steps reach. Measured with one thread of a Xeon with AVX-512
// and bf16 instructions, weights in q8_0 (docs/concepts/costs.md): a step reads all weights, then computes, 1 to 32
// tokens.
constexpr Efficiency measured_shares{
    .compute = 0.8, .bandwidth = 1, .quantised_bandwidth = 1, .in_turn = true, .basis = Basis::guess};

// Both directions of a pair in one. A direction that was not measured is like the other.
void add_links(const std::vector<MachineLink>& links, ClusterDescription& description) {
  std::map<std::pair<std::string, std::string>, NamedLink> pairs;
  for (const MachineLink& link : links) {
    const bool upward = link.from < link.to;
    NamedLink& pair = pairs[std::minmax(link.from, link.to)];
    pair.between = {std::min(link.from, link.to), std::max(link.from, link.to)};
    pair.speed.latency_s = std::max(pair.speed.latency_s, link.latency_s);
    pair.speed.bandwidth_bytes_per_s = std::max(pair.speed.bandwidth_bytes_per_s, link.bytes_per_s);
    (upward ? pair.speed.bandwidth_up_bytes_per_s : pair.speed.bandwidth_down_bytes_per_s) = link.bytes_per_s;
  }
  const auto is_there = [&](const std::string& name) {
    return std::ranges::find(description.machines, name, &MachineDescription::name) != description.machines.end();
  };
  for (auto& [ends, pair] : pairs)
    if (is_there(ends.first) && is_there(ends.second)) description.links.push_back(std::move(pair));
}

}  // namespace

Cluster cluster_of(const std::vector<MachineStatus>& members, const std::vector<MachineLink>& links,
                   const Network& network) {
  ClusterDescription description;
  description.name = "members";
  description.network = network;
  for (const MachineStatus& member : members) {
    MachineDescription machine;
    machine.name = member.name;
    for (std::size_t slot = 0; slot < member.devices.size(); ++slot) {
      const OfferedDevice& device = member.devices[slot];
      // Speeds were measured here and now: each device is a type of its own.
      DeviceType type;
      type.name = fmt::format("processor {}", description.device_types.size() + 1);  // whatever a member calls it
      type.vendor = "cpu";
      type.memory_bytes = device.memory_bytes;
      type.memory_bandwidth_bytes_per_s = device.bytes_per_s;
      type.flop_per_s = {{"fp32", device.flop_per_s}, {"bf16", device.flop_per_s}};
      type.efficiency = measured_shares;
      type.reserve_bytes = 0;
      machine.devices.push_back(type.name);
      description.device_types.push_back(std::move(type));
    }
    description.machines.push_back(std::move(machine));
  }
  add_links(links, description);
  return resolve(std::move(description), "the members' reports");
}

Network assumed_network() {
  Network network;
  network.within_machine = LinkSpeed{.latency_s = 20e-6, .bandwidth_bytes_per_s = 2e9};
  network.within_site = LinkSpeed{.latency_s = 0.2e-3, .bandwidth_bytes_per_s = 125e6};
  return network;
}

}  // namespace motley
