// Collapsing: devices that no cost can tell apart become one class with a count.
#pragma once

#include <vector>

#include "motley/cluster/cluster.hpp"

namespace motley {

std::vector<int> all_devices(const Cluster& cluster);

// A few devices of one type in one machine that are dealt out together; mostly a single one.
using Unit = std::vector<int>;

struct DeviceClass {
  std::vector<Unit> units;  // alike in size, type, links, host memory and disk
  bool one_machine = true;  // otherwise all in different machines
};

enum class Alike {
  by_links,  // exchanging two units of a class changes no link: exact
  by_type    // links are not looked at: coarse, for clusters whose measured links all differ
};

// `unit_size` > 1 deals out devices of one machine and type this many at a time (what is left over forms a smaller
// unit).
std::vector<DeviceClass> collapse(const Cluster& cluster, const std::vector<int>& devices, Alike alike, int unit_size);

// Cuts the cluster into `parts` lists of devices that are images of each other: the i-th device of every part has the
// same type, and the same links to the other devices of its part. Machines that are alike are dealt out whole where
// there are enough of them, otherwise the devices of each machine are. What cannot be dealt out evenly is in no part.
// Empty where some part would be.
std::vector<std::vector<int>> equal_parts(const Cluster& cluster, int parts);

}  // namespace motley
