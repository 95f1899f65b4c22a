// `motley plan train`, and what `verify` and `explain` do with its plans.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/cli/command.hpp"
#include "motley/plan/chain.hpp"

namespace motley::cli {

void add_plan_train(CLI::App& plan_verbs, Action& action);

int verify_chain(const ChainPlan& plan, const Output& output);
int explain_chain_plan(const ChainPlan& plan, const Output& output);

}  // namespace motley::cli
