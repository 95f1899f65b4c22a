// `plan rent`, and what other verbs do with plans of its kind.
#pragma once

#include "motley/cli/command.hpp"
#include "motley/plan/rent.hpp"

namespace motley::cli {

void add_plan_rent(CLI::App& plan_verbs, Action& action);

// For `verify` and `explain`; the exit code.
int explain_rent(const RentPlan& plan, const Output& output);

}  // namespace motley::cli
