#include "motley/fleet/cluster_of.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "motley/agent/gpu_rates.hpp"
#include "motley/base/error.hpp"
#include "motley/cluster/names.hpp"
#include "motley/workers/gpu_list.hpp"

namespace motley {

namespace {

// Of the rates that an agent measures, what the engine's steps reach. Measured with one thread of a Xeon with AVX-512
// and bf16 instructions, weights in q8_0 (docs/concepts/costs.md): a step reads all weights, then computes, 1 to 32
// tokens.
constexpr Efficiency measured_shares{
    .compute = 0.8, .bandwidth = 1, .quantised_bandwidth = 1, .in_turn = true, .basis = Basis::guess};

// GPUs of one kind are alike where the smaller figure is at least this share of the larger.
constexpr double like_memory = 0.9, like_rates = 0.97;

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

// Speeds were measured here and now: each processor is a type of its own.
DeviceType type_of_processor(const OfferedDevice& device, std::size_t number) {
  DeviceType type;
  type.name = fmt::format("processor {}", number);  // whatever a member calls it
  type.vendor = "cpu";
  type.memory_bytes = device.memory_bytes;
  type.memory_bandwidth_bytes_per_s = device.bytes_per_s;
  type.flop_per_s = {{"fp32", device.flop_per_s}, {"bf16", device.flop_per_s}};
  type.efficiency = measured_shares;
  type.reserve_bytes = 0;
  return type;
}

// The catalogue's, with what was measured in its place. A slice of a card has the same share of everything as it has of
// the memory.
DeviceType type_of_gpu(const OfferedDevice& device) {
  const DeviceType* known = find_in_catalogue(whole_card(device.kind));
  if (known == nullptr) throw Error(ErrorCode::peer, "a kind of GPU that the catalogue does not know");
  DeviceType type = *known;
  if (whole_card(device.kind) != device.kind) {
    const double share =
        std::min(1.0, static_cast<double>(device.total_bytes) / static_cast<double>(type.memory_bytes));
    type.name += " slice";
    type.memory_bandwidth_bytes_per_s *= share;
    for (auto& [data_type, flop_per_s] : type.flop_per_s) flop_per_s *= share;
    type.efficiency.basis = type.training.basis = Basis::guess;
  }
  if (device.rates.empty()) return type;
  const DeviceType measured = parse_rates(device.rates, device.kind);
  type.memory_bandwidth_bytes_per_s = measured.memory_bandwidth_bytes_per_s;
  for (const auto& [data_type, flop_per_s] : measured.flop_per_s) type.flop_per_s[data_type] = flop_per_s;
  // Tensor cores are as fast in both types of 16 bits, of which one is measured.
  if (const auto bf16 = measured.flop_per_s.find("bf16"); bf16 != measured.flop_per_s.end())
    if (const auto fp16 = type.flop_per_s.find("fp16"); fp16 != type.flop_per_s.end()) fp16->second = bf16->second;
  type.efficiency = measured.efficiency;
  type.training = {};  // those shares hold for training, too
  type.overhead = measured.overhead;
  type.copies = measured.copies;
  return type;
}

bool are_within(double a, double b, double share) { return std::min(a, b) >= share * std::max(a, b); }

// As they were measured, or both by the catalogue.
bool have_like_rates(const OfferedDevice& a, const OfferedDevice& b) {
  if (a.rates.empty() || b.rates.empty()) return a.rates.empty() && b.rates.empty();
  const DeviceType one = parse_rates(a.rates, a.kind), other = parse_rates(b.rates, b.kind);
  const auto alike = [](double x, double y) { return are_within(x, y, like_rates); };
  return alike(one.memory_bandwidth_bytes_per_s, other.memory_bandwidth_bytes_per_s) &&
         std::ranges::equal(
             one.flop_per_s, other.flop_per_s,
             [&](const auto& x, const auto& y) { return x.first == y.first && alike(x.second, y.second); }) &&
         alike(one.copies.upload_bytes_per_s, other.copies.upload_bytes_per_s) &&
         alike(one.copies.download_bytes_per_s, other.copies.download_bytes_per_s);
}

// The slowest of those that were measured, since a machine has one.
std::optional<LinkSpeed> link_inside(const MachineStatus& member) {
  std::optional<LinkSpeed> slowest;
  for (const OfferedDevice& device : member.devices)
    for (const PeerLink& peer : device.peers) {
      if (!slowest) slowest = LinkSpeed{.latency_s = peer.latency_s, .bandwidth_bytes_per_s = peer.bytes_per_s};
      slowest->latency_s = std::max(slowest->latency_s, peer.latency_s);
      slowest->bandwidth_bytes_per_s = std::min(slowest->bandwidth_bytes_per_s, peer.bytes_per_s);
    }
  return slowest;
}

struct GpuOfMachine {
  const OfferedDevice* device;
  std::size_t machine;
};

// Types of one kind are few, since planners treat devices of a type alike: one is planned with the least memory of its
// GPUs.
void add_gpus(std::vector<GpuOfMachine> gpus, ClusterDescription& description) {
  std::ranges::stable_sort(gpus, [](const GpuOfMachine& a, const GpuOfMachine& b) {
    return std::tie(a.device->kind, b.device->memory_bytes) < std::tie(b.device->kind, a.device->memory_bytes);
  });
  std::map<std::string, int> numbers;  // of types of one name
  struct Kind {
    const OfferedDevice* first;
    std::size_t type;
  };
  std::vector<Kind> kinds;
  for (const auto& [device, machine] : gpus) {
    auto kind = std::ranges::find_if(kinds, [device = device](const Kind& known) {
      return known.first->kind == device->kind &&
             are_within(static_cast<double>(known.first->memory_bytes), static_cast<double>(device->memory_bytes),
                        like_memory) &&
             have_like_rates(*known.first, *device);
    });
    if (kind == kinds.end()) {
      DeviceType type = type_of_gpu(*device);
      if (const int number = ++numbers[type.name]; number > 1) type.name += fmt::format(" ({})", number);
      kind = kinds.insert(kinds.end(), {device, description.device_types.size()});
      description.device_types.push_back(std::move(type));
    }
    DeviceType& type = description.device_types[kind->type];
    type.memory_bytes = device->memory_bytes;  // less than that of those before it
    description.machines[machine].devices[static_cast<std::size_t>(device->slot)] = type.name;
  }
}

}  // namespace

Cluster cluster_of(const std::vector<MachineStatus>& members, const std::vector<MachineLink>& links,
                   const Network& network) {
  ClusterDescription description;
  description.name = "members";
  description.network = network;
  std::vector<GpuOfMachine> gpus;
  for (const MachineStatus& member : members) {
    MachineDescription machine;
    machine.name = member.name;
    machine.link = link_inside(member);
    for (const OfferedDevice& device : member.devices) {
      const auto slot = static_cast<std::size_t>(device.slot);
      machine.devices.resize(std::max(machine.devices.size(), slot + 1), std::string(empty_slot));
      if (device.vendor == "cpu") {
        description.device_types.push_back(type_of_processor(device, description.device_types.size() + 1));
        machine.devices[slot] = description.device_types.back().name;
      } else {
        gpus.push_back({&device, description.machines.size()});
      }
    }
    description.machines.push_back(std::move(machine));
  }
  add_gpus(std::move(gpus), description);
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
