// A strategy for every site of a row: layers, operators, stages. The multiple-choice knapsack on a chain.
//
// Every site takes one of its options. Memory adds up, transient memory takes the maximum, time adds up, and two
// neighbours pay what it costs to change from the one's outgoing to the other's incoming layout:
//
//   time_s = micro_batches * (sum of time_s + sum of layout_change_s[out of a site][in of the next]) + sum of sync_s
//   bytes  = sum of (bytes + in_flight * bytes_in_flight) + the largest chosen transient_bytes
//
// Two questions, both answered exactly: the least time within a budget of bytes, and the whole front of bytes and time.
// Figures are doubles as given: no grid of bytes, no axis of budgets. docs/concepts/chain.md has the method; in short:
//
//   - An option that another beats in time and bytes, by more than any layout change could bring back, is dropped.
//   - What a site's future depends on is its outgoing layout alone, so partial chains are kept per layout, as lists of
//     (bytes, time) that no other beats, also across layouts where the change cannot make up for it.
//   - A price on bytes turns the budget into a shortest path. The best price gives a bound, a shadow price, and two
//     chains around the budget that are spliced into a first answer. Partial chains that cannot beat the answer under
//     that price are dropped.
//   - Transient bytes: thresholds over their distinct sizes, bounded an interval of thresholds at a time.
//
// Sums of the same figures in another order differ in their last bits; times closer than 1e-13 of the largest possible
// time count as equal, and a budget holds what exceeds it by less than 1e-12 of itself.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/base/clock.hpp"

namespace motley {

struct StrategyOption {
  double time_s = 0;           // of one micro-batch
  double sync_s = 0;           // once, however many micro-batches there are
  double bytes = 0;            // held all the time
  double bytes_in_flight = 0;  // held for every micro-batch in flight
  double transient_bytes = 0;  // held while the site works
  int layout_in = 0;
  int layout_out = 0;
  bool operator==(const StrategyOption&) const = default;
};

// Equal sites in a row, each with a choice of its own.
struct StrategyRun {
  std::vector<StrategyOption> options;
  std::int64_t repeat = 1;
  bool operator==(const StrategyRun&) const = default;
};

struct StrategyChain {
  std::vector<StrategyRun> runs;
  std::vector<std::vector<double>> layout_change_s;  // [from][to], of one micro-batch; empty: one layout, free
  double micro_batches = 1;
  double in_flight = 1;
  bool operator==(const StrategyChain&) const = default;
};

std::int64_t site_count(const StrategyChain& chain);

struct StrategyTotal {
  double time_s = 0;
  double bytes = 0;
};
// Of one option per site, by the definition above. `choice` holds indices into the options of each site.
StrategyTotal strategy_total(const StrategyChain& chain, const std::vector<int>& choice);

struct StrategyLimits {
  double tolerance = 0;  // an answer proven within this relative distance of the optimum will do
  std::optional<Instant> deadline = {};
  std::int64_t max_points = 20'000'000;  // partial chains held at once; beyond them the answer has a gap
};

enum class StrategyStatus {
  optimal,
  gap,        // within the asked tolerance, or stopped by a limit: `bound_s` tells how far off it can be
  infeasible  // no chain fits the budget
};

// Why no chain fits.
struct StrategyShortage {
  std::int64_t site = 0;  // one that does not fit alone; otherwise the first that no longer fits with those before
  bool alone = false;     // it does not fit by itself
  double site_least_bytes = 0;  // the least that this site alone takes, with its transient bytes
  double least_bytes = 0;       // the least budget that the whole chain fits
};

struct StrategyAnswer {
  StrategyStatus status = StrategyStatus::infeasible;
  std::vector<int> choice;  // option of every site, repeats written out
  double time_s = 0;
  double bytes = 0;
  double bound_s = 0;           // no chain that fits takes less
  double gap = 0;               // (time_s - bound_s) / time_s
  double price_s_per_byte = 0;  // what one more byte of budget is worth: the price of the relaxation
  StrategyShortage shortage;    // where infeasible
  std::int64_t evaluated = 0;   // partial chains made
};

// The least time within the budget. Throws an internal error on a chain that check_strategy_chain() refuses.
StrategyAnswer solve_strategy_chain(const StrategyChain& chain, double budget_bytes, const StrategyLimits& limits = {});

// The front of bytes and time of the whole chain: for every budget, the least time within it.
struct StrategyFront {
  struct Point {
    double bytes = 0;
    double time_s = 0;
    std::vector<int> choice;
  };
  std::vector<Point> points;  // bytes ascend, times descend
  double gap_s = 0;           // no point is slower than it had to be by more; 0: exact
  std::int64_t evaluated = 0;
};

// Exact within the limits. Where a tolerance is asked for, or a limit stops it, `gap_s` is what the relaxation proves
// of the points that were found: at least the chains that the relaxation itself can end at.
StrategyFront strategy_front(const StrategyChain& chain, const StrategyLimits& limits = {});

}  // namespace motley
