// The homogeneous problem of Galvatron under its published cost form: like devices, an even pipeline, a strategy for
// every layer within the memory of a device. The published planner enumerates batch, micro-batches, stages and the
// strategies allowed at once, and solves one knapsack per stage on a grid of MB; here the chain kernel solves them,
// exactly, with memory rounded up to MB as published.
//
// Published, and kept: the knapsack weighs gradient exchange as if it happened every micro-batch; changes of layout
// count in the knapsack but not in the step; stages are cut evenly, the remainder on the last; above 20 GiB a fifth of
// the memory is withheld.
#pragma once

#include <optional>
#include <vector>

#include "motley/cost/published/galvatron.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {

struct GalvatronProblem {
  int batch = 1;          // samples per step
  double memory_mib = 0;  // of a device
  int largest_stages = 8;
  int largest_split = 8;  // tensor or sequence degree
  GalvatronSchedule schedule = GalvatronSchedule::one_f_one_b;
  GradientReduction reduction = GradientReduction::once;
  bool zero2 = true;  // data parallelism that is not ZeRO-3 is ZeRO-2, not replication
};

struct GalvatronPlan {
  GalvatronRun run;
  std::vector<int> stage_layers;
  std::vector<GalvatronStrategy> layers;
  GalvatronStrategy ends;  // embedding and head
  double step_s = 0;
  std::vector<double> stage_mib;  // without what is withheld
  double samples_per_s() const { return run.batch / step_s; }
};

struct GalvatronOutcome {
  std::optional<GalvatronPlan> plan;  // none: nothing fits
  int knapsacks = 0;                  // solved
};

GalvatronOutcome search_galvatron(const GalvatronForm& form, const GalvatronProblem& problem);

// What a layer may do on `devices` devices, and what may stand in one knapsack; `recompute` doubles the list.
std::vector<GalvatronStrategy> galvatron_strategies(int devices, const GalvatronProblem& problem, bool recompute);

// A stage's layers as a chain: bytes are MiB rounded up, seconds with gradient exchange.
StrategyChain galvatron_chain(const GalvatronForm& form, const std::vector<GalvatronStrategy>& strategies,
                              const GalvatronRun& run, int stage, int layers);

}  // namespace motley
