#include "motley/planner/train/plan_chain.hpp"

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"

namespace motley {
namespace {

// Small figures in full: people who try an example by hand write bytes by the unit.
std::string bytes_text(double bytes) { return bytes < 1e6 ? fmt::format("{} bytes", bytes) : human_bytes(bytes); }

void explain_shortage(const ChainDescription& chain, ChainOutcome& outcome) {
  const StrategyShortage& shortage = outcome.shortage;
  const std::string place = site_place(chain, shortage.site), budget = bytes_text(chain.budget_bytes);
  outcome.reason = shortage.alone ? fmt::format("{} alone needs at least {}, the budget is {}", place,
                                                bytes_text(shortage.site_least_bytes), budget)
                                  : fmt::format("{} (site {}) does not fit in {} with the {} sites before it", place,
                                                shortage.site, budget, shortage.site);
  outcome.hint = fmt::format("give at least {} (budget_bytes = {}), or add options with fewer bytes",
                             bytes_text(shortage.least_bytes), shortage.least_bytes);
}

}  // namespace

StrategyChain strategy_chain(const ChainDescription& chain) {
  StrategyChain strategies{.runs = {}, .layout_change_s = chain.layout_change_s};
  for (const auto& sites : chain.sites) {
    StrategyRun run{.options = {}, .repeat = sites.repeat};
    for (const auto& option : sites.options) {
      // Without costs of changing, all layouts are one.
      const int layout = chain.layout_change_s.empty() ? 0 : layout_index(chain, option);
      run.options.push_back({.time_s = option.time_s,
                             .sync_s = option.sync_s,
                             .bytes = option.bytes,
                             .transient_bytes = option.transient_bytes,
                             .layout_in = layout,
                             .layout_out = layout});
    }
    strategies.runs.push_back(std::move(run));
  }
  return strategies;
}

ChainOutcome plan_chain(const ChainDescription& chain, const ChainPlanOptions& options) {
  const auto start = Clock::now();
  const StrategyLimits limits{.tolerance = options.tolerance, .deadline = start + duration_of(options.deadline_s)};
  const StrategyChain strategies = strategy_chain(chain);
  const StrategyAnswer answer = solve_strategy_chain(strategies, chain.budget_bytes, limits);
  ChainOutcome outcome;
  std::int64_t evaluated = answer.evaluated;
  if (options.front == ChainFrontWanted::yes) {
    const StrategyFront front = strategy_front(strategies, limits);
    for (const auto& point : front.points) outcome.front.push_back({point.time_s, point.bytes});
    outcome.front_gap_s = front.gap_s;
    evaluated += front.evaluated;
  }
  if (answer.status == StrategyStatus::infeasible) {
    outcome.shortage = answer.shortage;
    explain_shortage(chain, outcome);
    return outcome;
  }
  ChainPlan plan;
  plan.chain = chain;
  plan.choice.assign(answer.choice.begin(), answer.choice.end());
  const ChainCost cost = chain_cost(chain, plan.choice);
  plan.predicted = {cost.total_s(), cost.total_bytes(), answer.price_s_per_byte};
  plan.front = outcome.front;
  plan.front_gap_s = outcome.front_gap_s;
  plan.search.planner = "chain";
  plan.search.objective = "time";
  plan.search.cost = "chain";
  plan.search.seed = static_cast<std::int64_t>(options.seed);
  plan.search.status = answer.status == StrategyStatus::optimal ? SearchStatus::optimal : SearchStatus::gap;
  plan.search.bound = answer.bound_s;
  plan.search.gap = answer.gap;
  plan.search.evaluated = evaluated;
  plan.search.elapsed_s = seconds_since(start);
  outcome.plan = std::move(plan);
  return outcome;
}

}  // namespace motley
