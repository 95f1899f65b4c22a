#include "motley/cost/form/hop.hpp"

#include <limits>
#include <optional>

namespace motley {
namespace {

// One more part of the way: the slowest sets the rate, and the first piece passes the others by itself.
void add_copy(HopSpeed& hop, double latency_s, double bytes_per_s) {
  hop.latency_s += latency_s;
  hop.fill_s_per_byte += 1 / std::max(hop.bandwidth_bytes_per_s, bytes_per_s);
  if (bytes_per_s >= hop.bandwidth_bytes_per_s) return;
  hop.bandwidth_bytes_per_s = bytes_per_s;
  hop.by_copies = true;
}

}  // namespace

HopSpeed hop_speed(const Cluster& cluster, int from, int to) {
  return hop_over(cluster.link(from, to), cluster, from, to);
}

HopSpeed hop_over(const PathSpeed& link, const Cluster& cluster, int from, int to) {
  HopSpeed hop{.latency_s = link.latency_s, .bandwidth_bytes_per_s = link.bandwidth_bytes_per_s};
  const std::optional<CopyRates> down = copies_of(cluster, from), up = copies_of(cluster, to);
  const bool from_memory_to_memory =
      down && up &&
      cluster.devices[static_cast<std::size_t>(from)].machine == cluster.devices[static_cast<std::size_t>(to)].machine;
  if (from_memory_to_memory) return hop;
  if (down) add_copy(hop, down->latency_s, down->download_bytes_per_s);
  if (up) add_copy(hop, up->latency_s, up->upload_bytes_per_s);
  return hop;
}

HopSpeed best_hop(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to, double bytes) {
  HopSpeed best;
  double least = std::numeric_limits<double>::infinity();
  for (const int a : from)
    for (const int b : to) {
      if (a == b) continue;
      const HopSpeed hop = hop_speed(cluster, a, b);
      if (hop.seconds(bytes) < least) {
        least = hop.seconds(bytes);
        best = hop;
      }
    }
  return best;
}

}  // namespace motley
