// Figures of a workload that are probably in a wrong unit.
#pragma once

#include <string>
#include <vector>

#include "motley/workload/workload.hpp"

namespace motley {

// One sentence each, with the value as it was read.
std::vector<std::string> workload_warnings(const Workload& workload);

}  // namespace motley
