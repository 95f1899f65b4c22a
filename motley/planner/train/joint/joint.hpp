// The training planner: replicas, stages, layers and strategies in one search, over devices and links that all differ.
// The method, and what is exact in it: docs/planner-train.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/cost/train/train_cost.hpp"

namespace motley {

struct TrainOptions {
  CostOptions cost = {};
  Profile profile = {};
  std::optional<std::int64_t> stages = {}, replicas = {};  // fix the grid
  double deadline_s = 10;
  std::uint64_t seed = 0;
  int threads = 1;
  double effort = 1;  // scales the number of local moves
};

struct TrainOutcome {
  std::optional<TrainPlan> plan;
  std::string reason, hint;  // where there is none
};

// Deterministic for its inputs and seed, whatever the threads, unless the deadline cuts the search. Throws an input
// error where the workload has no training job or the options contradict the cluster.
TrainOutcome plan_joint(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options);

}  // namespace motley
