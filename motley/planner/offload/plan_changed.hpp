// "What if": an offload plan made again for a machine with other figures.
#pragma once

#include <string>
#include <vector>

#include "motley/planner/offload/offload_options.hpp"

namespace motley {

// `changes`: "host_memory=128 GiB" or "disk.read=5 GB/s", of the plan's machine. Throws an input error where one makes
// no sense.
OffloadOutcome plan_changed(const OffloadPlan& plan, const std::vector<std::string>& changes, const CostOptions& cost);

}  // namespace motley
