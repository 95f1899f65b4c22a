#include "motley/cluster/slowed.hpp"

#include <fmt/format.h>

#include <string>

#include "motley/cluster/names.hpp"

namespace motley {
namespace {

DeviceType slowed(DeviceType type, double factor, const std::string& device) {
  type.name = fmt::format("{} ({}, {:.1f} times slower)", type.name, device, factor);
  type.memory_bandwidth_bytes_per_s /= factor;
  for (auto& [data_type, flop_per_s] : type.flop_per_s) flop_per_s /= factor;
  if (type.overhead) type.overhead = Overhead{type.overhead->layer_s * factor, type.overhead->step_s * factor};
  return type;
}

}  // namespace

// Each machine is described by itself, since copies of one need not stay alike.
Cluster slowed(const Cluster& cluster, const std::map<std::string, double>& factors) {
  ClusterDescription description = cluster.description;
  description.machines.clear();
  for (const Machine& machine : cluster.machines) {
    MachineDescription described = cluster.description.machines[static_cast<std::size_t>(machine.description)];
    described.name = machine.name;
    described.count = 1;
    described.devices.clear();
    for (const int device : machine.devices) {
      const std::string& name = cluster.devices[static_cast<std::size_t>(device)].name;
      described.devices.resize(std::stoul(name.substr(name.rfind('/') + 1)), std::string(empty_slot));
      const auto factor = factors.find(name);
      if (factor != factors.end())
        description.device_types.push_back(slowed(cluster.type_of(device), factor->second, name));
      described.devices.push_back(factor == factors.end() ? cluster.type_of(device).name
                                                          : description.device_types.back().name);
    }
    description.machines.push_back(std::move(described));
  }
  return resolve(std::move(description), "the cluster with its slow devices");
}

}  // namespace motley
