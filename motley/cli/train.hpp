// `motley plan train`, and what the other verbs do with its plans.
#pragma once

#include <CLI/CLI.hpp>

#include "motley/cli/command.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/plan/chain.hpp"
#include "motley/plan/train.hpp"

namespace motley::cli {

void add_plan_train(CLI::App& plan_verbs, Action& action);

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

int explain_train(const TrainPlan& plan, const CostOptions& cost, int depth, const Output& output);
int simulate_train(const TrainPlan& plan, const std::string& file, const CostOptions& cost,
                   const std::string& trace_out, const Output& output);
int compare_train(const std::vector<std::string>& files, const Output& output);

int explain_chain_plan(const ChainPlan& plan, const Output& output);

}  // namespace motley::cli
