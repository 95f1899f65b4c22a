// What the two annealings of the placement search share.
#pragma once

#include <cmath>
#include <functional>

#include "motley/base/random.hpp"
#include "motley/planner/serve/placement/placement.hpp"

namespace motley {

constexpr double bound_reached = 1 - 1e-9;  // of the bound: nothing is left to find

// Falls geometrically from `hottest` to a hundredth of it while progress goes from 0 to 1.
inline double annealing_temperature(double hottest, double progress) { return hottest * std::pow(0.01, progress); }

struct Annealed {
  Placement placement;
  double tokens_per_s = 0;
  std::int64_t evaluated = 0;
};

struct AnnealingBudget {
  std::int64_t moves = 0;
  double bound = 0;            // ends where it is reached
  double hottest = 0.1;        // first temperature, as a share of the start's flow
  std::function<bool()> stop;  // asked now and then
};

// Over chains of stages with disjoint ranges, starting from that which `start` is nearest to.
Annealed anneal_stages(const PlacementProblem& problem, const Placement& start, RandomStream random,
                       const AnnealingBudget& budget);

// Over all placements.
Annealed anneal_ranges(const PlacementProblem& problem, const Placement& start, RandomStream random,
                       const AnnealingBudget& budget);

}  // namespace motley
