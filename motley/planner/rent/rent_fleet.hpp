// The fleet: which copies to rent. A combinatorial start, the relaxation by column generation, the integer programme on
// a pool of columns, and a bound of what the columns outside could still bring.
#pragma once

#include <cstdint>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/planner/rent/lp_family.hpp"

namespace motley {
double seconds_left(Instant deadline);

// Again and again the copies that bring most per dollar, at the price of each class's cheapest shape, until every class
// has `level` in every scenario. Nothing where the available devices do not suffice by this rule. Knows no solver.
std::optional<Copies> greedy_cover(const RentProblem& problem, double level);

// A start without any programme: greedy_cover() at level 1, or at the highest level that the budget pays for; then
// copies that are not needed are given back.
std::optional<Copies> greedy_fleet(const RentProblem& problem);

struct FleetOptions {
  MilpSolver solver = MilpSolver::best;
  double relative_gap = 1e-6;
  std::int64_t pool = 400;
  Instant deadline;
};

struct FleetAnswer {
  std::optional<Copies> copies;  // none: no fleet reaches the goal, or none was found in time
  Routing routing;
  double cost = 0;             // with start-ups
  double bound = 0;            // of the level, or of the cost
  double gap = 0;              // relative
  bool exact = false;          // the search ended by itself: the gap is within the one asked for
  Prices prices;               // of the relaxation
  double capacity = 0;         // where there is no fleet: the level that all available devices would carry
  std::int64_t evaluated = 0;  // columns and nodes
};

// The relaxation's prices: of the goal, or where the demand cannot be carried, of capacity.
Prices relaxed_prices(const RentProblem& problem, const FleetOptions& options);

// The goal of the problem's form, then among equal fleets the cheapest, of these the one with fewest distinct shapes,
// then fewest devices, then the first names.
FleetAnswer solve_fleet(const RentProblem& problem, const FleetOptions& options);

}  // namespace motley
