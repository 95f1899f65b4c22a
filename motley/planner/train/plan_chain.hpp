// One strategy chain by itself: the least time within its budget, and the whole front.
#pragma once

#include <optional>
#include <string>

#include "motley/plan/chain_plan.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {

enum class ChainFrontWanted { no, yes };

struct ChainPlanOptions {
  double tolerance = 0;  // a choice proven within this relative distance of the least time will do
  double deadline_s = 10;
  std::uint64_t seed = 0;  // recorded: nothing here is random
  ChainFrontWanted front = ChainFrontWanted::no;
};

// No plan: the chain does not fit its budget, and `reason` names the site and the least memory that would do.
struct ChainOutcome {
  std::optional<ChainPlan> plan;
  std::string reason, hint;
  StrategyShortage shortage;
  std::vector<ChainPoint> front;  // where it was asked for, also beyond the budget
  double front_gap_s = 0;         // no point of the front is slower than it had to be by more
};

ChainOutcome plan_chain(const ChainDescription& chain, const ChainPlanOptions& options);

// The description as the kernel takes it.
StrategyChain strategy_chain(const ChainDescription& chain);

}  // namespace motley
