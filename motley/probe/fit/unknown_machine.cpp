#include "motley/probe/fit/unknown_machine.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace motley {

ClusterDescription one_machine(int workers, std::int64_t memory_bytes, const std::string& name) {
  DeviceType type;
  type.name = "worker";
  type.vendor = "cpu";
  type.memory_bytes = memory_bytes;
  type.memory_bandwidth_bytes_per_s = 1;
  type.flop_per_s = {{"bf16", 1}, {"fp32", 1}};
  type.reserve_bytes = 0;
  MachineDescription machine;
  machine.name = name;
  machine.devices = {fmt::format("worker*{}", workers)};
  ClusterDescription description;
  description.name = "this machine";
  description.machines = {machine};
  description.device_types = {type};
  return description;
}

ClusterDescription this_machine() {
  return one_machine(1, static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE) / 2);
}

ClusterDescription machine_of(const std::vector<NvidiaGpu>& gpus) {
  ClusterDescription description = one_machine(0, 0);
  std::vector<std::string>& devices = description.machines.front().devices;
  std::vector<DeviceType>& types = description.device_types;
  const DeviceType blank = std::exchange(types, {}).front();
  devices.clear();
  for (const NvidiaGpu& gpu : gpus) {
    devices.push_back(gpu.name);
    const auto known = std::ranges::find(types, gpu.name, &DeviceType::name);
    if (known != types.end()) {
      known->memory_bytes = std::min(known->memory_bytes, gpu.free_bytes);
      continue;
    }
    DeviceType& type = types.emplace_back(blank);
    type.name = gpu.name;
    type.vendor = "nvidia";
    type.memory_bytes = gpu.free_bytes;
    type.reserve_bytes = std::nullopt;
  }
  return description;
}

}  // namespace motley
