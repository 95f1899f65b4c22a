// Figures that a reader believes but a person should look at again: most often a unit is wrong by a factor of 1000.
#pragma once

#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"

namespace motley {

// One sentence each, with the value as it was read.
std::vector<std::string> cluster_warnings(const Cluster& cluster);

}  // namespace motley
