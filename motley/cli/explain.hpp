// `motley explain`: each kind of plan has a function that explains it, in the file of its planner's verb.
#pragma once

#include <string>
#include <vector>

#include "motley/cli/command.hpp"
#include "motley/plan/plan.hpp"
#include "motley/planner/serve/plan_again.hpp"

namespace motley::cli {

struct ExplainOptions {
  std::string file;
  std::string form;                   // of the cost; empty: the plan's
  std::vector<std::string> settings;  // KEY=VALUE
  int depth = 2;                      // of the tree that is printed
  Changes changes;
  bool if_lost = false;  // also plan for each possible loss
  Output output;
};

// The result is the exit code.
int explain(const ServePlan& plan, const ExplainOptions& options);
int explain(const TrainPlan& plan, const ExplainOptions& options);
int explain(const RentPlan& plan, const ExplainOptions& options);
int explain(const ChainPlan& plan, const ExplainOptions& options);
int explain(const CollectivePlan& plan, const ExplainOptions& options);
int explain(const OffloadPlan& plan, const ExplainOptions& options);

}  // namespace motley::cli
