// Which description answers for a pair of devices.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "motley/base/error.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/interconnect.hpp"

namespace motley {
namespace {

constexpr LinkSpeed default_within_machine{.latency_s = 10e-6, .bandwidth_bytes_per_s = 20e9};  // PCIe 4.0 x16, about
constexpr LinkSpeed default_through_host{.latency_s = through_host_latency_s, .bandwidth_bytes_per_s = 10e9};
constexpr LinkSpeed default_within_site{.latency_s = 0.2e-3, .bandwidth_bytes_per_s = 1.25e9};  // 10 Gbit/s Ethernet

enum class Direction { up, down, both };  // both: leaves one end's uplink and arrives by the other's downlink

double positive_min(double a, double b) {
  if (a <= 0) return b;
  return b <= 0 ? a : std::min(a, b);
}

PathSpeed path(const LinkSpeed& speed, Direction direction) {
  const double up = speed.bandwidth_up_bytes_per_s > 0 ? speed.bandwidth_up_bytes_per_s : speed.bandwidth_bytes_per_s;
  const double down =
      speed.bandwidth_down_bytes_per_s > 0 ? speed.bandwidth_down_bytes_per_s : speed.bandwidth_bytes_per_s;
  const double way = direction == Direction::up ? up : direction == Direction::down ? down : std::min(up, down);
  return {speed.latency_s, positive_min(way, speed.per_flow_bandwidth_bytes_per_s)};
}

// The [[link]] between two machines or two sites.
std::optional<PathSpeed> named_link(const ClusterDescription& description, const std::string& from,
                                    const std::string& to) {
  for (const auto& link : description.links) {
    if (link.between[0] == from && link.between[1] == to)
      return path(link.speed, from == to ? Direction::both : Direction::up);
    if (link.between[0] == to && link.between[1] == from) return path(link.speed, Direction::down);
  }
  return {};
}

PathSpeed inside_machine(const ClusterDescription& description, const Machine& machine) {
  const auto& own = description.machines[static_cast<std::size_t>(machine.description)].link;
  const LinkSpeed& unsaid = machine.through_host ? default_through_host : default_within_machine;
  return path(own ? *own : description.network.within_machine.value_or(unsaid), Direction::both);
}

}  // namespace

PathSpeed Cluster::link(int from, int to) const {
  MOTLEY_CHECK(from != to);
  const auto source = static_cast<std::size_t>(from), target = static_cast<std::size_t>(to);
  const auto& network = description.network;
  if (network.matrix)
    return {network.matrix->latency_s[source][target], network.matrix->bandwidth_bytes_per_s[source][target]};

  const Machine& a = machines[static_cast<std::size_t>(devices[source].machine)];
  const Machine& b = machines[static_cast<std::size_t>(devices[target].machine)];
  if (a.name == b.name) return inside_machine(description, a);
  if (const auto link = named_link(description, a.name, b.name)) return *link;
  if (const auto link = named_link(description, a.site, b.site)) return *link;
  if (a.site == b.site) return path(network.within_site.value_or(default_within_site), Direction::both);
  if (network.between_sites) return path(*network.between_sites, Direction::both);
  throw input_error(fmt::format("nothing describes the link between the sites \"{}\" and \"{}\" ({} to {})", a.site,
                                b.site, devices[source].name, devices[target].name),
                    fmt::format("add [[link]] between = [\"{}\", \"{}\"], or [network] between_sites", a.site, b.site));
}

namespace {

// A device on the driver's machine that stands for it; none: `device` is there, too, or nothing says where it is.
std::optional<int> of_driver(const Cluster& cluster, int device) {
  const auto& driver = cluster.description.driver;
  if (!driver || driver->machine.empty()) return {};
  const auto machine = std::ranges::find(cluster.machines, driver->machine, &Machine::name);
  MOTLEY_CHECK(machine != cluster.machines.end());
  if (cluster.devices[static_cast<std::size_t>(device)].machine == machine - cluster.machines.begin()) return {};
  return machine->devices.front();
}

constexpr PathSpeed no_way{.latency_s = 0, .bandwidth_bytes_per_s = std::numeric_limits<double>::infinity()};

}  // namespace

PathSpeed Cluster::from_driver(int device) const {
  const std::optional<int> driver = of_driver(*this, device);
  return driver ? link(*driver, device) : no_way;
}

PathSpeed Cluster::to_driver(int device) const {
  const std::optional<int> driver = of_driver(*this, device);
  return driver ? link(device, *driver) : no_way;
}

std::string machine_of(const std::string& device) { return device.substr(0, device.rfind('/')); }

int Cluster::find_device(std::string_view name) const {
  for (std::size_t i = 0; i < devices.size(); ++i)
    if (devices[i].name == name) return static_cast<int>(i);
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(device.name);
  throw input_error(fmt::format("the cluster has no device \"{}\"", name),
                    did_you_mean(name, names, "give a device as machine/slot"));
}

}  // namespace motley
