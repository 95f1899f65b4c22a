// Inside of strategy_chain.hpp: the chain made ready for searching, its relaxation under a price, and lists of partial
// chains.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "motley/solve/strategy_chain.hpp"

namespace motley::strategy {

inline constexpr double unbounded = std::numeric_limits<double>::infinity();

// What counts as within a budget: sums of the same bytes in another order differ in their last bits.
inline double slack_budget(double budget) { return budget + 1e-12 * std::abs(budget); }

// An option with the chain's micro-batches multiplied in.
struct Item {
  double time_s = 0;
  double bytes = 0;
  double transient_bytes = 0;
  int in = 0, out = 0;
  int option = 0;  // index among the site's options
};
using Items = std::vector<Item>;

struct Prepared {
  int layouts = 1;
  std::vector<double> change_s;       // [from * layouts + to]
  std::vector<double> entry_extra_s;  // [a * layouts + b]: most that entering by a costs more than entering by b
  std::vector<double> exit_extra_s;   // the same of leaving
  std::vector<Items> runs;
  std::vector<int> run_of;              // every site
  std::vector<double> transient_sizes;  // distinct, ascending, those below which some site has no option left out
  double time_tolerance_s = 0;

  std::size_t sites() const { return run_of.size(); }
  double change(int from, int to) const { return change_s[static_cast<std::size_t>(from * layouts + to)]; }
};
Prepared prepare(const StrategyChain& chain);

// The options of every run whose transient bytes do not exceed the threshold, without those that others beat.
struct Admitted {
  const Prepared* chain = nullptr;
  std::vector<Items> runs;
  const Items& at(std::size_t site) const { return runs[static_cast<std::size_t>(chain->run_of[site])]; }
};
Admitted admit(const Prepared& chain, double threshold);

// A whole chain. `items` index the admitted items of each site.
struct Path {
  double time_s = 0;
  double bytes = 0;  // without transient bytes
  std::vector<int> items;
};

// The chain that makes time_weight * time + byte_weight * bytes least; of equal ones that with fewer bytes, or, where
// only bytes count, with less time.
Path shortest(const Admitted& admitted, double time_weight, double byte_weight);
StrategyTotal path_total(const Admitted& admitted, const std::vector<int>& items);

// The relaxation of a budget: the price on bytes under which the shortest chain's bound is greatest.
struct Relaxation {
  double bound_s = unbounded;   // infinite where nothing fits
  double price_s_per_byte = 0;  // of one byte
  Path fast;                    // the shortest chains at that price just above and just within the budget
  Path thin;
};
Relaxation relax(const Admitted& admitted, double budget);

// For every site and outgoing layout before it, the least time + price * bytes of the sites from there on.
struct Suffix {
  double price_s_per_byte = 0;
  std::vector<double> least;  // [site * layouts + layout]
};
Suffix suffix_of(const Admitted& admitted, double price_s_per_byte);
// The chains that a budget's relaxation can end at, whatever the budget: bytes ascend, and each saves less time per
// byte than the one before. Stops at the deadline: then not all of them.
std::vector<Path> relaxation_hull(const Admitted& admitted, const StrategyLimits& limits);

// For every site and layout that it is entered by, the least time + price * bytes of the sites before.
std::vector<double> prefix_of(const Admitted& admitted, double price_s_per_byte);
// The fewest bytes of the sites from each site on.
std::vector<double> least_bytes(const Admitted& admitted);

// A partial chain: the sites up to some site, and the way back to the one that it extends.
struct Partial {
  double bytes = 0;
  double time_s = 0;
  std::uint32_t parent = 0;  // in the list of the site before, of layout `from`
  std::uint16_t from = 0;
  std::uint16_t item = 0;
};
using List = std::vector<Partial>;  // bytes ascend, times descend

// What partial chains may be dropped by besides others that beat them.
struct Pruning {
  double budget = unbounded;
  double upper_s = unbounded;  // only chains with less time are of interest
  std::vector<Suffix> suffixes;
  std::vector<double> prefix;       // prefix_of() at the first suffix's price
  std::vector<double> least_bytes;  // of the sites from each site on

  // A front: a chain is of interest where its time + price * bytes is below the limit of any of these.
  struct Alternative {
    Suffix suffix;
    double most_s = unbounded;
  };
  std::vector<Alternative> any_of;  // by price, descending
};

// lists[site][outgoing layout].
struct Lists {
  std::vector<std::vector<List>> at;
  std::int64_t evaluated = 0;  // partial chains made
  bool complete = true;        // not stopped by a limit
};
Lists grow(const Admitted& admitted, const Pruning& pruning, const StrategyLimits& limits);
std::vector<int> trace(const Lists& lists, std::size_t site, int layout, std::uint32_t index);

bool past(const StrategyLimits& limits);

}  // namespace motley::strategy
