// What a hop from one device to another takes: the link between them, and at an end with memory of its own a copy.
#pragma once

#include <algorithm>
#include <vector>

#include "motley/cluster/cluster.hpp"

namespace motley {

// Rows leave in pieces of this size: while one is on the link, the next is copied.
inline constexpr double hop_piece_bytes = 1 << 20;

struct HopSpeed {
  double latency_s = 0;              // of the link, and of each copy
  double bandwidth_bytes_per_s = 0;  // of the slowest of the link and the copies
  double fill_s_per_byte = 0;        // of the first piece, which passes the others before or after it
  bool by_copies = false;            // that slowest part is a copy

  // Until a message of this size has arrived, but for the time in which it keeps the slowest part busy.
  double wait_s(double bytes) const { return latency_s + std::min(bytes, hop_piece_bytes) * fill_s_per_byte; }
  double seconds(double bytes) const { return wait_s(bytes) + bytes / bandwidth_bytes_per_s; }
  bool operator==(const HopSpeed&) const = default;
};

// With the copies of both ends where these are in two machines: the link is that between the hosts, as it was measured
// or described, encryption included. Within a machine the link between two devices with memory of their own is from one
// memory to the other; between such a device and a processor there is the copy of the first. Processors copy nothing.
HopSpeed hop_speed(const Cluster& cluster, int from, int to);
// The same where the link is known.
HopSpeed hop_over(const PathSpeed& link, const Cluster& cluster, int from, int to);

// The fastest pair of devices from one group to another for `bytes`; between groups of one device it is that pair.
HopSpeed best_hop(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to, double bytes);

}  // namespace motley
