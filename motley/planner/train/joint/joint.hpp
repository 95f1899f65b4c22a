// The training planner: replicas, stages, layers and strategies in one search, over devices and links that all differ.
// The method, and what is exact in it: docs/concepts/planner-train.md.
#pragma once

#include "motley/planner/train/plan/train_options.hpp"

namespace motley {

// Deterministic for its inputs and seed, whatever the threads, unless the deadline cuts the search. Throws an input
// error where the workload has no training job or the options contradict the cluster.
TrainOutcome plan_joint(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options);

}  // namespace motley
