#pragma once

#include <string>
#include <string_view>

#include "motley/cluster/cluster.hpp"

namespace motley {

// The description as TOML that read_cluster() takes, below `heading`, whose lines become comments.
std::string cluster_toml(const ClusterDescription& description, std::string_view heading);

}  // namespace motley
