// From pipelines to a plan.
#pragma once

#include "motley/planner/serve/groups.hpp"

namespace motley {

// A route for every pipeline, weighted by what it can serve; what stays idle, and why; what to expect of it all.
ServePlan write_pipelines(Groups& groups, const std::vector<Pipeline>& pipelines);

}  // namespace motley
