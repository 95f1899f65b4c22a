#include "motley/fleet/offer.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/net/listener.hpp"

namespace motley {
namespace {

// Of one device; far above what is built. Not a number is outside, too.
constexpr std::int64_t most_memory_bytes = std::int64_t{256} << 40;
constexpr double least_per_s = 1e3, most_bytes_per_s = 1e15, most_flop_per_s = 1e18;
constexpr std::int32_t most_threads = 1 << 16;
constexpr std::size_t longest_kind = 256, longest_address = 512;
constexpr double most_latency_s = 3600;

bool is_within(double value, double least, double most) { return value >= least && value <= most; }

void check_device(const OfferedDevice& device) {
  if (device.memory_bytes < 1 || !(device.bytes_per_s > 0) || !(device.flop_per_s > 0) || device.threads < 1)
    throw Error(ErrorCode::peer, "a device without memory or speed");
  if (device.memory_bytes > most_memory_bytes || !is_within(device.bytes_per_s, least_per_s, most_bytes_per_s) ||
      !is_within(device.flop_per_s, least_per_s, most_flop_per_s) || device.threads > most_threads)
    throw Error(ErrorCode::peer, fmt::format("no device has {}, {:.3g} B/s, {:.3g} FLOP/s and {} threads",
                                             human_bytes(static_cast<double>(device.memory_bytes)), device.bytes_per_s,
                                             device.flop_per_s, device.threads));
  if (device.kind.size() > longest_kind)
    throw Error(ErrorCode::peer, fmt::format("a kind of device of {} bytes", device.kind.size()));
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
  for (const OfferedDevice& device : report.devices) check_device(device);
  check_address(report.fabric_address);
  check_address(report.weights_address);
}

bool can_be_link(double latency_s, double bytes_per_s) {
  return is_within(latency_s, 0, most_latency_s) && is_within(bytes_per_s, 1, most_bytes_per_s);
}

}  // namespace motley
