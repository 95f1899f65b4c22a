// Pipelines that several searches found, combined: what each serves inside the deadlines is measured by
// simulating it alone, and the best set of pipelines that share no device is a set packing, solved as such.
#pragma once

#include <vector>

#include "motley/planner/serve/trial/trial.hpp"

namespace motley {

// Best first. Empty where the deadline came first, or where no pipeline keeps the deadlines.
std::vector<Pipeline> assembled(const ServeProblem& problem, const std::vector<Pipeline>& proposed);

}  // namespace motley
