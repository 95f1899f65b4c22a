// What was measured on a machine, as JSON and as tables.
#pragma once

#include <string>

#include "motley/base/value.hpp"
#include "motley/probe/probe.hpp"

namespace motley {

Value probe_json(const Cluster& cluster, const ProbeResult& result);
std::string probe_text(const Cluster& cluster, const ProbeResult& result);
std::string profile_text(const Profile& profile);
// Counted experts against those that gamma and chance make of each number of tokens, by the mean over layers.
std::string routing_text(const Profile& profile, const Model& model);

}  // namespace motley
