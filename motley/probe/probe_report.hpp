// What was measured on a machine, as JSON and as tables.
#pragma once

#include <string>

#include "motley/base/value.hpp"
#include "motley/probe/probe.hpp"

namespace motley {

Value probe_json(const Cluster& cluster, const ProbeResult& result);
std::string probe_text(const Cluster& cluster, const ProbeResult& result);
std::string profile_text(const Profile& profile);

}  // namespace motley
