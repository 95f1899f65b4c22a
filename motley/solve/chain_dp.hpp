// Cuts a line of units into a chain of stages over limited resources: exact, for two objectives.
//
// There are K classes of interchangeable items, `counts[k]` of each. An option is a kind of stage: it takes items of
// some classes, stands at a place, holds at least one unit and as many as its capacity has room for, and costs time
// that is the sum over its units. Units are of a few kinds, each with its time and its size on every option; a stage
// holds some that follow one another in the line. A chain is a sequence of options that hold all units. Its two
// objectives:
//
//   latency = sum over stages of (fixed + per_unit of each unit) + sum over hops + return from the last place to the
//   first load    = max over stages of (fixed + per_unit of each unit + the hop to the next stage)
//
// where fixed seconds and capacity depend on whether the stage is the first, the last, both or neither. The sender pays
// the hop, so chains are built from the last stage to the first: the place that receives is then known.
//
// Method. Both objectives together need the whole front; we walk it by the bound on the load. For a given bound every
// stage has a largest number of units, and the least latency is a dynamic programme over (items used, place of the
// first stage so far, place of the last stage, units placed) with one number per state. In it the latency of the new
// stage is a difference of sums over the line's end, so the best number of units is a minimum over a sliding window:
// constant time per state and option, whatever the capacity. The next point of the front is the least latency with a
// load strictly below the last point's. Every step is exact, so the front is.
//
// A partial chain is dropped at once where the items that are left could not hold the units that are left, each at the
// best share of any option's bounded capacity: near the least load that prunes nearly all. So it is where the units
// that are left, each at the least time of any option, would make it no better than the best chain so far.
//
// Cost of one step: at most the product of (counts[k] + 1) x groups of places^2 x units x options.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/solve/pareto.hpp"

namespace motley {

// Seconds that add up along the chain, and seconds that keep the stage itself busy; often the same.
struct StageSeconds {
  double latency_s = 0;
  double load_s = 0;
  StageSeconds operator+(const StageSeconds& other) const {
    return {latency_s + other.latency_s, load_s + other.load_s};
  }
  StageSeconds operator*(double factor) const { return {latency_s * factor, load_s * factor}; }
  bool operator==(const StageSeconds&) const = default;
};

enum class ChainPosition { middle = 0, first = 1, last = 2, only = 3 };  // bits: 1 first, 2 last

struct PositionTerms {
  StageSeconds fixed;
  std::int64_t capacity = 0;  // for units by their sizes; 0: cannot stand here
};

struct ChainOption {
  int place = 0;                             // index into the rows of `hops`
  std::vector<int> takes;                    // items of every class
  std::vector<StageSeconds> per_unit;        // by kind of unit
  PositionTerms at[4];                       // by ChainPosition
  std::vector<std::int64_t> unit_size = {};  // by kind of unit; empty: 1 each
};

struct ChainProblem {
  std::vector<int> counts;    // items of every class
  std::vector<int> must_use;  // at least this many items of every class; `counts` itself: all items
  std::int64_t units = 0;
  std::vector<std::uint16_t> kind_of_unit = {};  // first to last; empty: all of kind 0
  std::vector<ChainOption> options;
  std::vector<std::vector<StageSeconds>> hops;  // from place, to place
  std::vector<std::vector<double>>
      return_latency_s;  // from the last place, to the first place; not paid by a chain of one
};

struct ChainStage {
  int option = 0;
  std::int64_t units = 0;
  bool operator==(const ChainStage&) const = default;
};

struct Chain {
  StageSeconds seconds;
  std::vector<ChainStage> stages;  // first to last
  bool operator==(const Chain&) const = default;
};

// The objectives of a chain by the definition above.
StageSeconds chain_seconds(const ChainProblem& problem, const std::vector<ChainStage>& stages);

// Cells of one step: what a caller compares with a limit before solving.
double chain_cells(const ChainProblem& problem);

// Holds the tables of one problem, to be asked many times. The problem must outlive it.
class ChainSolver {
 public:
  explicit ChainSolver(const ChainProblem& problem);

  // The chain of least latency among those with load <= bound and latency < cutoff; nothing where there is none. Of
  // equal chains always the same.
  std::optional<Chain> least_latency(double load_bound = std::numeric_limits<double>::infinity(),
                                     double cutoff_s = std::numeric_limits<double>::infinity());

  // Entries of the table that were computed so far.
  std::int64_t evaluated() const { return evaluated_; }
  const ChainProblem& problem() const { return problem_; }

  struct Places {
    std::vector<int> group;     // of every place
    std::vector<int> of_group;  // one place of every group
  };
  // Of a number of the line's last units: how many there are of each kind.
  using EndCounts = std::vector<std::vector<std::int64_t>>;  // by kind, then by how many units

 private:
  // How a state is reached: its first stage, and the rest of the chain.
  struct Step {
    std::int32_t option;
    std::int32_t units;
    std::int32_t row;  // of the rest; -1: none
  };
  struct Candidate {
    double key;  // latency - units * per_unit
    std::int64_t units;
  };
  // Of the line's last units on one option, by their number; load and size where not all are alike.
  struct EndSums {
    std::vector<double> latency_s, load_s;
    std::vector<std::int64_t> size;
  };
  struct Row {
    std::int64_t low = 1, high = 0;  // reachable units; empty
  };
  struct Best {
    double latency_s = std::numeric_limits<double>::infinity();
    ChainStage stage;
    std::int32_t row = -1;
    std::int64_t rest = 0;  // units in that row
  };

  bool alike() const { return counts_.size() == 1; }  // all units
  // The most units of a stage under a bound: where all are alike; wherever it stands and begins, or somewhat more; and
  // at the line's end.
  std::int64_t most_alike(const ChainOption& option, ChainPosition position, double hop_load_s, double bound) const;
  std::int64_t most_units(int option, double bound) const;
  std::int64_t most_at_end(int option, ChainPosition position, double bound) const;
  // How far a stage reaches that begins behind `rest` placed units, where not all are alike: the most units that are
  // then placed, and at least `total`.
  struct Reach {
    const double* load_s;  // as in EndSums
    const std::int64_t* size;
    double most_load_s;  // of the stage's units
    std::int64_t most_size, units;
    bool holds(std::int64_t rest, std::int64_t total) const {
      return size[total] - size[rest] <= most_size && load_s[total] <= load_s[rest] + most_load_s;
    }
    std::int64_t from(std::int64_t rest, std::int64_t total) const {
      while (total < units && holds(rest, total + 1)) ++total;
      return total;
    }
  };
  Reach reach(int option, ChainPosition position, double hop_load_s, double bound) const;
  // The same by `rest` of a stage in the middle; and the least units behind a first stage that then holds the others.
  void fill_reach(int option, double hop_load_s, double bound, std::int64_t* reaches) const;
  std::int64_t least_before_first(int option, double hop_load_s, double bound) const;
  // Both of an option before this group of places.
  void fill_reaches(int option, int entry, double bound);
  std::size_t row_of_entry(int option, int entry) const;
  std::vector<double> capacity_per_item(double bound) const;
  std::int64_t least_total(double room) const;
  double units_s(int option, std::int64_t rest, std::int64_t total) const;
  std::int32_t row_index(std::int64_t used, int entry, int exit) const;
  void start_chains(int option, double bound, Best& best);
  void extend_chains(std::int64_t used, int option, double bound, Best& best);
  void trim(std::int64_t used);
  template <bool alike>
  void add_middle(std::int32_t from, std::int32_t to, int option, const StageSeconds& hop, const std::int64_t* reach,
                  std::int64_t least, double cutoff_s);
  void close_chain(std::int32_t from, int option, const StageSeconds& hop, double return_s, std::int64_t least,
                   Best& best);
  Chain trace(const Best& best) const;

  const ChainProblem& problem_;
  std::vector<std::int64_t> digit_;          // weight of each class in the index of used items
  std::vector<std::int64_t> option_offset_;  // what an option adds to that index
  std::int64_t used_states_ = 1;
  Places entry_, exit_;  // alike for every hop into them; for every return from them
  EndCounts counts_;
  std::vector<EndSums> end_sums_;     // by option
  std::vector<double> least_left_s_;  // of the units that are left, each on any option
  std::size_t width_ = 0;             // states of a row: 0 to all units
  std::vector<double> latency_;       // of every row's states
  std::vector<Step> steps_;
  std::vector<Row> rows_;
  std::vector<double> per_item_;               // of every class, under the present bound
  std::vector<Candidate> window_;              // of the sliding minimum
  std::vector<std::int64_t> reach_, closing_;  // of fill_reaches(), where a chain needed them under the present bound
  std::int64_t evaluated_ = 0;
};

enum class SearchEnd { complete, deadline };

struct ChainFront {
  std::vector<Chain> chains;  // by latency, ascending
  SearchEnd end = SearchEnd::complete;
};

// All non-dominated chains, or those found until the deadline.
ChainFront pareto_front(ChainSolver& solver, Instant deadline);

struct CycleAnswer {
  std::optional<Chain> chain;
  SearchEnd end = SearchEnd::complete;
};

// The chain with the least cycle time max(load, latency / in_flight): with this many jobs in flight, one leaves per
// cycle. Nothing where no chain has a cycle below `cutoff_s`.
CycleAnswer least_cycle(ChainSolver& solver, double in_flight, double cutoff_s, Instant deadline);

}  // namespace motley
