// The multiple-choice knapsack as a linear programme: every site may mix its options. Without layout changes and
// transient bytes this is the relaxation of a strategy chain, and solved by sorting: each site's options on the lower
// convex hull of (bytes, time), steps along the hulls taken by what they save per byte (Sinha and Zoltners 1979).
#pragma once

#include <vector>

#include "motley/solve/strategy_chain.hpp"

namespace motley {

struct MultipleChoiceRelaxation {
  bool feasible = false;
  double bound_s = 0;           // of the mixed choice: no choice takes less
  int mixed_sites = 0;          // at most one
  double rounded_s = 0;         // of the choice without the step that does not fit whole
  std::vector<int> rounded;     // that choice, one option per site
  double price_s_per_byte = 0;  // of the last step taken
};

// Layout changes and transient bytes of the chain must be zero.
MultipleChoiceRelaxation relax_multiple_choice(const StrategyChain& chain, double budget_bytes);

}  // namespace motley
