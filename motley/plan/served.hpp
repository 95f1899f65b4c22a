// Which sound plans the server does not run yet. They can be explained, compared and simulated all the same.
#pragma once

#include <vector>

#include "motley/plan/serve_plan.hpp"

namespace motley {

// Empty: the plan can be served. The hints name the options of `motley plan serve` that lead to such a plan.
std::vector<Violation> not_served(const ServePlan& plan);

}  // namespace motley
