#include "bench/published/osdp_search.hpp"

#include <cmath>

namespace motley {

StrategyChain osdp_chain(const std::vector<OsdpOperator>& operators, const OsdpSetting& setting) {
  StrategyChain chain;
  chain.micro_batches = setting.micro_batches;
  for (const auto& op : operators) {
    StrategyRun run;
    for (const auto& option : osdp_options(op, setting))
      run.options.push_back({.time_s = option.micro_batch_s,
                             .sync_s = option.sync_s,
                             .bytes = option.bytes,
                             .transient_bytes = option.transient_bytes});
    chain.runs.push_back(std::move(run));
  }
  return chain;
}

OsdpOutcome plan_osdp(const std::vector<OsdpOperator>& operators, const OsdpSetting& setting, double limit_bytes) {
  const StrategyAnswer answer = solve_strategy_chain(osdp_chain(operators, setting), limit_bytes);
  OsdpOutcome outcome{.plan = {}, .shortage = answer.shortage};
  if (answer.status == StrategyStatus::infeasible) return outcome;
  OsdpPlan plan{.samples = setting.samples, .options = {}, .step_s = answer.time_s, .bytes = answer.bytes};
  for (std::size_t i = 0; i < operators.size(); ++i)
    plan.options.push_back(osdp_options(operators[i], setting)[static_cast<std::size_t>(answer.choice[i])]);
  plan.samples_per_s = setting.network.ranks * setting.micro_batches * setting.samples / answer.time_s;
  outcome.plan = std::move(plan);
  return outcome;
}

OsdpOutcome plan_osdp_batch(const std::vector<OsdpOperator>& operators, OsdpSetting setting, double limit_bytes,
                            int most_samples) {
  OsdpOutcome best;
  for (int samples = 1; samples <= most_samples; ++samples) {
    setting.samples = samples;
    OsdpOutcome outcome = plan_osdp(operators, setting, limit_bytes);
    if (!outcome.plan) return best.plan ? best : outcome;
    if (!best.plan || outcome.plan->samples_per_s > best.plan->samples_per_s) best = std::move(outcome);
  }
  return best;
}

StrategyChain osdp_blocks_chain(const OsdpBlock& block, std::size_t row, std::int64_t count, OsdpMemory memory) {
  StrategyRun run{.options = {}, .repeat = count};
  for (std::size_t level = 0; level < block.time_s.at(row).size(); ++level) {
    const double mb = block.memory_mb[row][level];
    run.options.push_back(
        {.time_s = block.time_s[row][level], .bytes = memory == OsdpMemory::truncated ? std::trunc(mb) : mb});
  }
  return {.runs = {run}, .layout_change_s = {}};
}

std::optional<OsdpBlocksPlan> search_osdp_released(const OsdpBlocks& blocks, std::int64_t hidden, std::int64_t count,
                                                   double limit_mb) {
  constexpr std::size_t first_row = 1, last_row = 3;
  const OsdpBlock& block = blocks.of_hidden(hidden);
  std::optional<OsdpBlocksPlan> best;
  for (std::size_t row = first_row; row <= last_row; ++row) {
    const StrategyAnswer answer = solve_strategy_chain(osdp_blocks_chain(block, row, count, OsdpMemory::truncated),
                                                       limit_mb - blocks.overhead_mb);
    if (answer.status == StrategyStatus::infeasible) break;
    if (!best || answer.time_s < best->step_s) best = OsdpBlocksPlan{row, answer.choice, answer.time_s, answer.bytes};
  }
  return best;
}

}  // namespace motley
