// `motley plan allreduce` and its like, and what the other verbs do with their plans.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/cli/command.hpp"
#include "motley/plan/collective_plan.hpp"

namespace motley::cli {

void add_plan_collectives(CLI::App& plan_verbs, Action& action);

// `form`: motley (pipelined) or genmodel (rounds in sequence); empty: by the plan's objective.
int explain_collective(const CollectivePlan& plan, const std::string& file, const std::string& form, int depth,
                       const std::vector<std::string>& settings, const Output& output);
int compare_collectives(const std::vector<std::string>& files, const Output& output);

}  // namespace motley::cli
