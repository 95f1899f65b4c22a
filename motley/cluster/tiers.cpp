#include <algorithm>

#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

constexpr HostRates usual_host = {
    .upload_bytes_per_s = 12e9, .download_bytes_per_s = 12e9, .bandwidth_bytes_per_s = 40e9, .flop_per_s = 0.5e12};

HostRates processor_rates(const DeviceType& type) {
  double flop_per_s = 0;
  if (const auto fp32 = type.flop_per_s.find("fp32"); fp32 != type.flop_per_s.end())
    flop_per_s = fp32->second;
  else
    for (const auto& [name, rate] : type.flop_per_s) flop_per_s = std::max(flop_per_s, rate);
  const double bandwidth = type.efficiency.bandwidth * type.memory_bandwidth_bytes_per_s;
  return {.upload_bytes_per_s = bandwidth / 2,  // a copy reads and writes
          .download_bytes_per_s = bandwidth / 2,
          .bandwidth_bytes_per_s = bandwidth,
          .flop_per_s = type.efficiency.compute * flop_per_s};
}

}  // namespace

MemoryTiers tiers_of(const Cluster& cluster, int device) {
  const int index = cluster.devices[static_cast<std::size_t>(device)].machine;
  const Machine& machine = cluster.machines[static_cast<std::size_t>(index)];
  const MachineDescription& described = cluster.description.machines[static_cast<std::size_t>(machine.description)];
  MemoryTiers tiers;
  tiers.host_bytes = described.host_memory_bytes;
  tiers.disk = described.disk;
  if (tiers.disk && tiers.disk->both_bytes_per_s == 0)
    tiers.disk->both_bytes_per_s = tiers.disk->read_bytes_per_s + tiers.disk->write_bytes_per_s;
  tiers.is_processor = cluster.type_of(device).vendor == "cpu";
  const HostRates usual = tiers.is_processor ? processor_rates(cluster.type_of(device)) : usual_host;
  tiers.host = described.host.value_or(HostRates{});
  const auto fill = [](double& rate, double otherwise) { rate = rate > 0 ? rate : otherwise; };
  // Described in one direction, the other is as fast.
  fill(tiers.host.download_bytes_per_s, tiers.host.upload_bytes_per_s);
  fill(tiers.host.upload_bytes_per_s, usual.upload_bytes_per_s);
  fill(tiers.host.download_bytes_per_s, usual.download_bytes_per_s);
  fill(tiers.host.bandwidth_bytes_per_s, usual.bandwidth_bytes_per_s);
  fill(tiers.host.flop_per_s, usual.flop_per_s);
  return tiers;
}

}  // namespace motley
