// From groups of devices to a training step: layers to stages, sequences to replicas.
#pragma once

#include <limits>
#include <vector>

#include "motley/planner/train/joint/strategy_tables.hpp"
#include "motley/planner/train/plan/apportion.hpp"

namespace motley {

// Stages first to last, each the devices of one group.
using PipelineGroups = std::vector<std::vector<int>>;

// Layers for every stage, so that the slowest is as quick as possible, and of those divisions one whose stages together
// are quick; `seconds` of each of them for this many layers (infinite: does not fit). Empty where the layers fit
// nowhere.
std::vector<std::int64_t> divide_layers(std::int64_t layers, const std::vector<std::vector<double>>& seconds);

// A replica with its layers divided, before it is known how many micro-batches it gets.
struct SolvedReplica {
  std::vector<StageChoice> stages;  // first to last; none: the model does not fit
  ReplicaPace pace = {.each_s = std::numeric_limits<double>::infinity()};  // at the slowest stage, after filling
  bool fits() const { return !stages.empty(); }
};

// `sequences`: of a micro-batch; `micro_batches`: about how many there will be.
SolvedReplica solve_replica(const TrainProblem& problem, StrategyTables& tables, const PipelineGroups& groups,
                            std::int64_t sequences, std::int64_t micro_batches);

// The layout of replicas with these micro-batches; sequences are dealt out so that all of the batch is.
TrainLayout write_layout(const TrainProblem& problem, const std::vector<PipelineGroups>& replicas,
                         const std::vector<const SolvedReplica*>& solved,
                         const std::vector<std::int64_t>& micro_batches, std::int64_t sequences);

}  // namespace motley
