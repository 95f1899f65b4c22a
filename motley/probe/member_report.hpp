// What was measured between members, as JSON, as tables, and as the words that head a cluster file.
#pragma once

#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/probe/fit/member_cluster.hpp"
#include "motley/probe/links/member_probe.hpp"

namespace motley {

Value member_json(const MemberProbeResult& result, const MemberFit& fit, const std::vector<std::string>& machines);
std::string member_text(const MemberFit& fit, const std::vector<std::string>& machines);
std::string member_heading(const MemberProbeResult& result, const MemberFit& fit);

// What a planner will not know of the network, and why.
std::vector<std::string> member_warnings(const ProbedCluster& probed, const MemberFit& fit);

}  // namespace motley
