// The search of the VLDB artefact: larger and larger batches, a number of stages, and one knapsack for the layers of a
// stage (all stages are alike). The chain kernel solves the knapsacks; memory is rounded up to MB as published.
#pragma once

#include <optional>
#include <vector>

#include "motley/cost/published/galvatron_vldb.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {

struct VldbPlan {
  int batch = 0;
  int stages = 1;
  std::vector<VldbStrategy> layers;  // of every stage
  double step_s = 0;
  double device_mib = 0;
  double samples_per_s() const { return batch / step_s; }
};

struct VldbOutcome {
  std::optional<VldbPlan> plan;  // of most samples per second; none: the smallest batch does not fit
  int largest_batch = 0;         // that fits, up to the limit
};

// Batches of 8, 16, ... below `batch_limit`, until one does not fit.
VldbOutcome search_vldb(const VldbModel& model, double memory_mib, int batch_limit = 256);

// The layers of one stage; bytes are MiB, rounded up as published.
StrategyChain vldb_chain(const VldbModel& model, const std::vector<VldbStrategy>& strategies, int batch, int layers);

}  // namespace motley
