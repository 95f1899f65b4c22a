// `motley plan train`, and what the other verbs do with its plans.
#pragma once

#include <string>
#include <vector>

#include "motley/cli/command.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/plan/train.hpp"

namespace motley::cli {

// What `plan train` is asked for a whole cluster.
struct TrainPlanOptions {
  std::string cluster, model, workload, profile;
  std::string cost = "motley";
  std::vector<std::string> settings;      // KEY=VALUE
  std::int64_t stages = 0, replicas = 0;  // 0: the planner chooses
  double deadline_s = 10;
  std::uint64_t seed = 0;
  int threads = 0;  // 0: all cores
};
int plan_train_and_show(const TrainPlanOptions& options, const Output& output);

int simulate_train(const TrainPlan& plan, const std::string& file, const CostOptions& cost,
                   const std::string& trace_out, const Output& output);

}  // namespace motley::cli
