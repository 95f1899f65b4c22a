#include <algorithm>

#include "motley/cluster/cluster.hpp"

namespace motley {
namespace {

constexpr HostRates usual_host = {
    .upload_bytes_per_s = 12e9, .download_bytes_per_s = 12e9, .bandwidth_bytes_per_s = 40e9, .flop_per_s = 0.5e12};

// A small copy and the wait for it took 9.6 to 11.5 us on an H200.
constexpr double usual_copy_s = 10e-6;

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

void fill(double& rate, double otherwise) { rate = rate > 0 ? rate : otherwise; }

}  // namespace

std::optional<CopyRates> copies_of(const Cluster& cluster, int device) {
  const DeviceType& type = cluster.type_of(device);
  if (type.vendor == "cpu") return std::nullopt;
  const int machine = cluster.devices[static_cast<std::size_t>(device)].machine;
  const int described = cluster.machines[static_cast<std::size_t>(machine)].description;
  const auto& host = cluster.description.machines[static_cast<std::size_t>(described)].host;
  CopyRates rates = type.copies;
  // Described in one direction, the other is as fast.
  fill(rates.download_bytes_per_s, rates.upload_bytes_per_s);
  fill(rates.upload_bytes_per_s, rates.download_bytes_per_s);
  if (host) {
    fill(rates.upload_bytes_per_s, host->upload_bytes_per_s);
    fill(rates.download_bytes_per_s, host->download_bytes_per_s);
    fill(rates.download_bytes_per_s, host->upload_bytes_per_s);
  }
  fill(rates.upload_bytes_per_s, usual_host.upload_bytes_per_s);
  fill(rates.download_bytes_per_s, usual_host.download_bytes_per_s);
  fill(rates.latency_s, usual_copy_s);
  return rates;
}

MemoryTiers tiers_of(const Cluster& cluster, int device) {
  const int index = cluster.devices[static_cast<std::size_t>(device)].machine;
  const Machine& machine = cluster.machines[static_cast<std::size_t>(index)];
  const MachineDescription& described = cluster.description.machines[static_cast<std::size_t>(machine.description)];
  MemoryTiers tiers;
  tiers.host_bytes = described.host_memory_bytes;
  tiers.disk = described.disk;
  if (tiers.disk && tiers.disk->both_bytes_per_s == 0)
    tiers.disk->both_bytes_per_s = tiers.disk->read_bytes_per_s + tiers.disk->write_bytes_per_s;
  tiers.host = described.host.value_or(HostRates{});
  const std::optional<CopyRates> copies = copies_of(cluster, device);
  tiers.is_processor = !copies;
  const HostRates usual = tiers.is_processor ? processor_rates(cluster.type_of(device)) : usual_host;
  if (copies) {
    tiers.host.upload_bytes_per_s = copies->upload_bytes_per_s;
    tiers.host.download_bytes_per_s = copies->download_bytes_per_s;
  }
  fill(tiers.host.download_bytes_per_s, tiers.host.upload_bytes_per_s);
  fill(tiers.host.upload_bytes_per_s, usual.upload_bytes_per_s);
  fill(tiers.host.download_bytes_per_s, usual.download_bytes_per_s);
  fill(tiers.host.bandwidth_bytes_per_s, usual.bandwidth_bytes_per_s);
  fill(tiers.host.flop_per_s, usual.flop_per_s);
  return tiers;
}

}  // namespace motley
