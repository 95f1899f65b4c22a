// The training planner: replicas, stages, layers and strategies in one search, over devices and links that all differ.
// The method, and what is exact in it: docs/concepts/planner-train.md.
#pragma once

#include <vector>

#include "motley/cost/train/train_cost.hpp"
#include "motley/planner/train/plan/make_train_plan.hpp"

namespace motley {

// Deterministic for its inputs and seed, whatever the threads, unless the deadline cuts the search. Throws an input
// error where the workload has no training job or the options contradict the cluster.
TrainOutcome plan_joint(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options);

// What memory is worth in a training plan, in the form `motley`: seconds of a step that a stage would work less for one
// more byte on each of its devices, with the layers that it has; by replica and stage. The slope of the chain kernel's
// relaxation: 0 where memory does not bind. A step gets shorter by it where the stage sets the pace.
std::vector<std::vector<double>> memory_prices_s_per_byte(const TrainPlan& plan, const CostOptions& options);

}  // namespace motley
