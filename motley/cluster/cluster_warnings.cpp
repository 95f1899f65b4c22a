#include "motley/cluster/cluster_warnings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "motley/base/units.hpp"
#include "motley/cluster/capability.hpp"

namespace motley {
namespace {

// What no device or network of recent years is outside of, with room for the next ones and for small experiments.
struct Range {
  double least = 0, most = std::numeric_limits<double>::infinity();
  bool contains(double value) const { return value >= least && value <= most; }
};

struct DeviceRanges {
  Range memory_bytes, bandwidth_bytes_per_s, flop_per_s, usd_per_hour;
};
// Tests and examples make CPU devices of a few MiB.
constexpr DeviceRanges cpu_ranges = {{1e5, 64e12}, {100e6, 5e12}, {100e6, 500e12}, {1e-3, 100}};
constexpr DeviceRanges accelerator_ranges = {{500e6, 4e12}, {10e9, 100e12}, {500e9, 100e15}, {1e-2, 100}};

struct LinkRanges {
  Range latency_s, bandwidth_bytes_per_s;
};
constexpr LinkRanges inside_ranges = {{0, 2e-3}, {50e6, 10e12}};
constexpr LinkRanges site_ranges = {{0, 50e-3}, {1e6, 1e12}};
constexpr LinkRanges far_ranges = {{0, 2}, {50e3, 1e12}};

constexpr Range host_memory_range = {1e5, 64e12};
constexpr Range disk_capacity_range = {1e6, 1e16};
constexpr Range disk_rate_range = {1e6, 1e12};
constexpr Range host_rate_range = {100e6, 10e12};
constexpr Range host_flop_range = {1e9, 1e15};

constexpr double suspicious_factor = 100;  // from the catalogue's figure

class Warnings {
 public:
  explicit Warnings(const Cluster& cluster) : cluster_(cluster) {}

  std::vector<std::string> all() {
    for (const auto& type : cluster_.types) check_type(type);
    const Network& network = cluster_.description.network;
    for (const auto& machine : cluster_.description.machines) {
      if (machine.link)
        check_link(fmt::format("the link inside machine \"{}\"", machine.name), *machine.link, inside_ranges);
      check_tiers(machine);
    }
    if (network.within_machine) check_link("[network] within_machine", *network.within_machine, inside_ranges);
    if (network.within_site) check_link("[network] within_site", *network.within_site, site_ranges);
    if (network.between_sites) check_link("[network] between_sites", *network.between_sites, far_ranges);
    for (const auto& link : cluster_.description.links)
      check_link(fmt::format("[[link]] {} to {}", link.between[0], link.between[1]), link.speed, far_ranges);
    if (network.matrix) check_matrix(*network.matrix);
    return std::move(found_);
  }

 private:
  void check(const std::string& what, double value, const Range& range, Dimension dimension) {
    if (value > 0 && !range.contains(value))
      found_.push_back(fmt::format("{} is read as {}: is the unit right?", what, format_quantity(value, dimension)));
  }

  // Against the catalogue's figure, where the type is one of its own.
  void check_figure(const std::string& what, double value, double known, const Range& range, Dimension dimension) {
    const double factor = known > 0 && value > 0 ? std::max(value / known, known / value) : 1;
    if (factor < suspicious_factor) return check(what, value, range, dimension);
    found_.push_back(fmt::format("{} is read as {}, the catalogue has {}: is the unit right?", what,
                                 format_quantity(value, dimension), format_quantity(known, dimension)));
  }

  void check_type(const DeviceType& type) {
    const DeviceRanges& ranges = type.vendor == "cpu" ? cpu_ranges : accelerator_ranges;
    const DeviceType* catalogued = find_in_catalogue(type.name);
    const DeviceType known = catalogued != nullptr ? *catalogued : DeviceType{};
    const auto what = [&](const std::string& key) { return fmt::format("{} of \"{}\"", key, type.name); };
    check_figure(what("memory"), static_cast<double>(type.memory_bytes), static_cast<double>(known.memory_bytes),
                 ranges.memory_bytes, Dimension::bytes);
    check_figure(what("memory_bandwidth"), type.memory_bandwidth_bytes_per_s, known.memory_bandwidth_bytes_per_s,
                 ranges.bandwidth_bytes_per_s, Dimension::bytes_per_s);
    for (const auto& [name, rate] : type.flop_per_s) {
      const auto found = known.flop_per_s.find(name);
      check_figure(what("flops." + name), rate, found == known.flop_per_s.end() ? 0 : found->second, ranges.flop_per_s,
                   Dimension::flop_per_s);
    }
    if (std::string old = capability_warning(type.name); !old.empty()) found_.push_back(std::move(old));
    check(what("price"), type.usd_per_hour, ranges.usd_per_hour, Dimension::usd_per_hour);
  }

  void check_tiers(const MachineDescription& machine) {
    const auto what = [&](std::string_view key) { return fmt::format("{} of machine \"{}\"", key, machine.name); };
    check(what("host_memory"), static_cast<double>(machine.host_memory_bytes), host_memory_range, Dimension::bytes);
    if (machine.disk) {
      check(what("disk.capacity"), static_cast<double>(machine.disk->capacity_bytes), disk_capacity_range,
            Dimension::bytes);
      check(what("disk.read"), machine.disk->read_bytes_per_s, disk_rate_range, Dimension::bytes_per_s);
      check(what("disk.write"), machine.disk->write_bytes_per_s, disk_rate_range, Dimension::bytes_per_s);
      check(what("disk.both"), machine.disk->both_bytes_per_s, disk_rate_range, Dimension::bytes_per_s);
    }
    if (machine.host) {
      check(what("host.upload"), machine.host->upload_bytes_per_s, host_rate_range, Dimension::bytes_per_s);
      check(what("host.download"), machine.host->download_bytes_per_s, host_rate_range, Dimension::bytes_per_s);
      check(what("host.bandwidth"), machine.host->bandwidth_bytes_per_s, host_rate_range, Dimension::bytes_per_s);
      check(what("host.flops"), machine.host->flop_per_s, host_flop_range, Dimension::flop_per_s);
    }
  }

  void check_link(const std::string& what, const LinkSpeed& speed, const LinkRanges& ranges) {
    check("the latency of " + what, speed.latency_s, ranges.latency_s, Dimension::seconds);
    for (const double bandwidth : {speed.bandwidth_bytes_per_s, speed.bandwidth_up_bytes_per_s,
                                   speed.bandwidth_down_bytes_per_s, speed.per_flow_bandwidth_bytes_per_s})
      check("the bandwidth of " + what, bandwidth, ranges.bandwidth_bytes_per_s, Dimension::bytes_per_s);
  }

  // Its extremes: one wrong unit puts all entries out of range.
  void check_matrix(const NetworkMatrix& matrix) {
    const auto extremes = [](const std::vector<std::vector<double>>& rows) {
      std::array<double, 2> ends = {std::numeric_limits<double>::infinity(), 0};
      for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t j = 0; j < rows[i].size(); ++j)
          if (i != j) ends = {std::min(ends[0], rows[i][j]), std::max(ends[1], rows[i][j])};
      return ends;
    };
    check("the largest latency of the matrix", extremes(matrix.latency_s)[1], far_ranges.latency_s, Dimension::seconds);
    const auto [least, most] = extremes(matrix.bandwidth_bytes_per_s);
    const Range any = {far_ranges.bandwidth_bytes_per_s.least, inside_ranges.bandwidth_bytes_per_s.most};
    check("the smallest bandwidth of the matrix", least, any, Dimension::bytes_per_s);
    check("the largest bandwidth of the matrix", most, any, Dimension::bytes_per_s);
  }

  const Cluster& cluster_;
  std::vector<std::string> found_;
};

}  // namespace

std::string capability_warning(std::string_view device_type) {
  const auto capability = compute_capability(device_type);
  if (!capability || *capability >= least_compute_capability) return {};
  return fmt::format(
      "\"{}\" has compute capability {:.1f}, and motley serves and trains on NVIDIA GPUs from {:.1f} on: plans for it "
      "can "
      "be made and simulated only",
      device_type, *capability, least_compute_capability);
}

std::vector<std::string> cluster_warnings(const Cluster& cluster) { return Warnings(cluster).all(); }

}  // namespace motley
