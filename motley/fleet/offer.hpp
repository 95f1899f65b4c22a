// What a member says that it has, held against what there can be.
#pragma once

#include "motley/agent/agent_messages.hpp"

namespace motley {

// Throws a peer error, with the value, for a device that cannot be one, a report without one, or an address that is
// none.
void check_report(const AgentReport& report);

bool can_be_link(double latency_s, double bytes_per_s);

}  // namespace motley
