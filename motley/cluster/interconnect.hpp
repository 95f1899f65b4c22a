// How devices of one machine reach each other, by the catalogue.
#pragma once

#include <optional>
#include <string_view>

#include "motley/cluster/cluster.hpp"

namespace motley {

// Between any two devices of this type in one machine, one direction: half of what the catalogue gives for a switched
// fabric (NVLink, Infinity Fabric), otherwise the host link, at three quarters of its raw speed (bridges join only
// pairs), of which cards that exchange through the host's memory get half. Nothing for a type that the catalogue does
// not know.
std::optional<LinkSpeed> machine_link(std::string_view device_type);

// GeForce cards do not reach each other's memory: what one sends passes through the host's. False for types that the
// catalogue does not know.
bool exchanges_through_host(std::string_view device_type);
// One way, with the launch of a copy. Tensor parallelism over two RTX 3090 brings 1.25 times the tokens/s of one stream
// over NVLink, which is about 20 us more for each all-reduce (docs/concepts/costs.md).
inline constexpr double through_host_latency_s = 25e-6;

}  // namespace motley
