#pragma once

#include <map>
#include <string>

#include "motley/cluster/cluster.hpp"

namespace motley {

// The same devices, links and machines, where these devices compute and read their memory this many times slower.
// Devices that the cluster does not have are passed over.
Cluster slowed(const Cluster& cluster, const std::map<std::string, double>& factors);

}  // namespace motley
