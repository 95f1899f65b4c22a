// What a plan was asked for and cannot give.
#pragma once

#include <string>
#include <vector>

#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

// `options` are those that it was planned with. With the objective slo, deadlines out of reach are named with what
// the quickest plan of all could keep, which is searched for here.
std::vector<std::string> plan_warnings(const ServePlan& plan, const ServeOptions& options);

}  // namespace motley
