// The assignment of devices to a grid of stages x replicas, one device each: DT-FM's problem
// (motley/cost/published/dtfm.hpp). Its objective is the sum of the slowest stage's gradient exchange and of the
// shortest path through the stages, where the way from stage to stage is a bottleneck matching. docs/figures/dtfm.md.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/planner/train/published/grid_problem.hpp"

namespace motley {

enum class GridStarts { structured, random };

struct GridOptions {
  std::uint64_t seed = 0;
  GridStarts starts = GridStarts::structured;  // random: for comparison
  int threads = 1;
  Instant deadline = Instant::max();
};

struct GridOutcome {
  DtfmAssignment best;
  double bound_s = 0;  // no assignment costs less
  SearchStatus status = SearchStatus::heuristic;
  std::int64_t evaluated = 0;
  std::vector<double> trace;  // the best cost after every start and every round, never rising
};

// Deterministic for problem, seed and starts, on any number of threads, unless the deadline cuts it short. Ends at once
// where the bound is reached.
GridOutcome search_grid(const GridProblem& problem, const GridOptions& options);

// What no assignment can be below: docs/figures/dtfm.md, "The bound".
double grid_bound(const GridProblem& problem);

}  // namespace motley
