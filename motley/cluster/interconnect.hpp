// How devices of one machine reach each other, by the catalogue.
#pragma once

#include <optional>
#include <string_view>

#include "motley/cluster/cluster.hpp"

namespace motley {

// Between any two devices of this type in one machine, one direction: half of what the catalogue gives for a switched
// fabric (NVLink, Infinity Fabric), otherwise the host link, at three quarters of its raw speed (bridges join only
// pairs). Nothing for a type that the catalogue does not know.
std::optional<LinkSpeed> machine_link(std::string_view device_type);

}  // namespace motley
