// From what a search found to a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/cost/train/train_cost.hpp"

namespace motley {

struct FoundStage {
  std::vector<int> devices;  // tensor parallel
  std::int64_t layers = 0;
};
struct FoundReplica {
  std::int64_t sequences = 0;
  std::int64_t micro_batches = 0;
  std::vector<FoundStage> stages;
};

// Where layers are to be computed again.
enum class Recompute { where_needed, always, never };

// The plan with its figures and memory; layers are computed again where a stage does not fit otherwise, if that is
// allowed. The search record is left to the caller, but for the form.
TrainPlan make_train_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                          const std::vector<FoundReplica>& replicas, Recompute recompute, GradientSync sync,
                          const CostOptions& cost);

// Sequences of a step over replicas whose next micro-batch takes each as long: whole numbers that differ by at most
// one.
std::vector<std::int64_t> equal_shares(std::int64_t sequences, std::int64_t replicas);

}  // namespace motley
