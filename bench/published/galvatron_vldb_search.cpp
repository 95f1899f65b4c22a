#include "bench/published/galvatron_vldb_search.hpp"

#include <cmath>

namespace motley {
namespace {

// The best of all numbers of stages for one batch.
std::optional<VldbPlan> best_of_batch(const VldbModel& model, double memory_mib, int batch) {
  std::optional<VldbPlan> best;
  for (int stages = 1; stages <= 8; stages *= 2) {
    std::vector<VldbStrategy> strategies;
    for (const auto& strategy : vldb_strategies())
      if (strategy.stages == stages) strategies.push_back(strategy);
    const double ends_mib = std::ceil(vldb_ends_mib(model, strategies.front(), batch));
    const StrategyAnswer answer =
        solve_strategy_chain(vldb_chain(model, strategies, batch, model.layer.count / stages), memory_mib - ends_mib);
    if (answer.status == StrategyStatus::infeasible) continue;
    const double step_s = answer.time_s * stages;
    if (best && step_s >= best->step_s) continue;
    best = VldbPlan{batch, stages, {}, step_s, ends_mib + answer.bytes};
    for (const int choice : answer.choice) best->layers.push_back(strategies[static_cast<std::size_t>(choice)]);
  }
  return best;
}

}  // namespace

StrategyChain vldb_chain(const VldbModel& model, const std::vector<VldbStrategy>& strategies, int batch, int layers) {
  StrategyChain chain;
  StrategyRun site{.options = {}, .repeat = layers};
  for (const auto& strategy : strategies) {
    const int layout = static_cast<int>(site.options.size());
    site.options.push_back({.time_s = vldb_layer_seconds(model, strategy, batch),
                            .bytes = std::ceil(vldb_layer_mib(model, strategy, batch)),
                            .layout_in = layout,
                            .layout_out = layout});
    std::vector<double> changes;
    for (const auto& next : strategies) changes.push_back(vldb_change_seconds(strategy, next, batch));
    chain.layout_change_s.push_back(std::move(changes));
  }
  chain.runs.push_back(std::move(site));
  return chain;
}

VldbOutcome search_vldb(const VldbModel& model, double memory_mib, int batch_limit) {
  VldbOutcome outcome;
  for (int batch = 8; batch < batch_limit; batch += 8) {
    std::optional<VldbPlan> plan = best_of_batch(model, memory_mib, batch);
    if (!plan) break;
    outcome.largest_batch = batch;
    if (!outcome.plan || plan->samples_per_s() > outcome.plan->samples_per_s()) outcome.plan = std::move(plan);
  }
  return outcome;
}

}  // namespace motley
