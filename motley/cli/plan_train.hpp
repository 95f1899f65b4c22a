// `motley plan train`, and what the other verbs do with its plans.
#pragma once

#include <string>
#include <vector>

#include "motley/cli/command.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley::cli {

struct TrainPlanOptions {
  std::string chain;  // one strategy chain, in place of a whole cluster
  bool front = false;
  double tolerance = 0;
  std::string cluster, model, workload, profile;
  std::string cost;                       // empty: motley
  std::vector<std::string> settings;      // KEY=VALUE
  std::int64_t stages = 0, replicas = 0;  // 0: the planner chooses
  std::string deadline = "10 s";
  std::uint64_t seed = 0;
  int threads = 0;  // 0: all cores
  Output output;
};
// For a whole cluster.
int plan_train_and_show(const TrainPlanOptions& options);

int simulate_train(const TrainPlan& plan, const std::string& file, const CostOptions& cost,
                   const std::string& trace_out, const Output& output);

}  // namespace motley::cli
