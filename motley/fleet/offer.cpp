#include "motley/fleet/offer.hpp"

#include <fmt/format.h>

#include <set>

#include "motley/agent/gpu_rates.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/net/listener.hpp"
#include "motley/workers/gpu_list.hpp"

namespace motley {
namespace {

// Of one device; far above what is built. Not a number is outside, too.
constexpr std::int64_t most_memory_bytes = std::int64_t{256} << 40;
constexpr double least_per_s = 1e3, most_bytes_per_s = 1e15, most_flop_per_s = 1e18;
constexpr std::int32_t most_threads = 1 << 16;
constexpr std::size_t longest_kind = 256, longest_address = 512, longest_backend = 64;
constexpr double most_latency_s = 3600;

bool is_within(double value, double least, double most) { return value >= least && value <= most; }

void check_gpu_rates(const OfferedDevice& device) {
  if (device.vendor != "nvidia") throw Error(ErrorCode::peer, "a processor with the rates of a GPU");
  if (!device.rates.empty()) parse_rates(device.rates, device.uuid);
  for (const PeerLink& peer : device.peers)
    if (peer.slot < 0 || peer.slot >= static_cast<std::int32_t>(max_offered_devices) || peer.slot == device.slot ||
        !can_be_link(peer.latency_s, peer.bytes_per_s))
      throw Error(ErrorCode::peer, fmt::format("a link from slot {} to slot {}, of {:.3g} s and {:.3g} B/s",
                                               device.slot, peer.slot, peer.latency_s, peer.bytes_per_s));
}

void check_device(const OfferedDevice& device) {
  const bool is_gpu = device.vendor == "nvidia";
  if (!is_gpu && device.vendor != "cpu") throw Error(ErrorCode::peer, "a device of a vendor that agents do not offer");
  const bool as_catalogued = is_gpu && device.bytes_per_s == 0 && device.flop_per_s == 0;
  if (device.memory_bytes < 1 || (!as_catalogued && !(device.bytes_per_s > 0 && device.flop_per_s > 0)) ||
      device.threads < 1)
    throw Error(ErrorCode::peer, "a device without memory or speed");
  if (device.memory_bytes > most_memory_bytes || device.threads > most_threads ||
      (!as_catalogued && !(is_within(device.bytes_per_s, least_per_s, most_bytes_per_s) &&
                           is_within(device.flop_per_s, least_per_s, most_flop_per_s))))
    throw Error(ErrorCode::peer, fmt::format("no device has {}, {:.3g} B/s, {:.3g} FLOP/s and {} threads",
                                             human_bytes(static_cast<double>(device.memory_bytes)), device.bytes_per_s,
                                             device.flop_per_s, device.threads));
  if (device.kind.size() > longest_kind)
    throw Error(ErrorCode::peer, fmt::format("a kind of device of {} bytes", device.kind.size()));
  if (device.slot < 0 || device.slot >= static_cast<std::int32_t>(max_offered_devices))
    throw Error(ErrorCode::peer, fmt::format("a device in slot {}", device.slot));
  if (is_gpu != is_gpu_uuid(device.uuid) || device.uuid.empty() == is_gpu || device.backend.size() > longest_backend)
    throw Error(ErrorCode::peer, "a device whose UUID or backend is none of its kind");
  if (!device.rates.empty() || !device.peers.empty()) check_gpu_rates(device);
  if (device.free_bytes < 0 || device.free_bytes > device.total_bytes || device.total_bytes > most_memory_bytes ||
      (is_gpu && device.memory_bytes > device.free_bytes) || device.kernels < 0)
    throw Error(ErrorCode::peer, "a device that offers more memory than it has");
}

void check_address(const std::string& address) {
  if (address.empty()) return;
  if (address.size() > longest_address)
    throw Error(ErrorCode::peer, fmt::format("an address of {} bytes", address.size()));
  host_of(address);  // throws where it is none
}

}  // namespace

void check_report(const AgentReport& report) {
  if (report.devices.empty()) throw Error(ErrorCode::peer, "no device is offered");
  std::set<std::int32_t> slots;
  for (const OfferedDevice& device : report.devices) {
    check_device(device);
    if (!slots.insert(device.slot).second)
      throw Error(ErrorCode::peer, fmt::format("two devices in slot {}", device.slot));
  }
  check_address(report.fabric_address);
  check_address(report.weights_address);
}

bool can_be_link(double latency_s, double bytes_per_s) {
  return is_within(latency_s, 0, most_latency_s) && is_within(bytes_per_s, 1, most_bytes_per_s);
}

}  // namespace motley
