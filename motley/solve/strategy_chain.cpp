#include "motley/solve/strategy_chain.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

#include "motley/base/error.hpp"
#include "motley/solve/strategy_lists.hpp"

namespace motley {

std::int64_t site_count(const StrategyChain& chain) {
  std::int64_t count = 0;
  for (const auto& run : chain.runs) count += run.repeat;
  return count;
}

StrategyTotal strategy_total(const StrategyChain& chain, const std::vector<int>& choice) {
  MOTLEY_CHECK(static_cast<std::int64_t>(choice.size()) == site_count(chain));
  double per_micro_batch_s = 0, sync_s = 0, bytes = 0, transient = 0;
  std::size_t site = 0;
  const StrategyOption* before = nullptr;
  for (const auto& run : chain.runs) {
    for (std::int64_t i = 0; i < run.repeat; ++i, ++site) {
      const StrategyOption& option = run.options.at(static_cast<std::size_t>(choice[site]));
      per_micro_batch_s += option.time_s;
      sync_s += option.sync_s;
      bytes += option.bytes + chain.in_flight * option.bytes_in_flight;
      transient = std::max(transient, option.transient_bytes);
      if (before && !chain.layout_change_s.empty())
        per_micro_batch_s += chain.layout_change_s[static_cast<std::size_t>(before->layout_out)]
                                                  [static_cast<std::size_t>(option.layout_in)];
      before = &option;
    }
  }
  return {chain.micro_batches * per_micro_batch_s + sync_s, bytes + transient};
}

namespace strategy {
namespace {

constexpr double proven_gap = 1e-12;                // relative: a bound this close is the optimum
constexpr double same_time = 1e-13;                 // relative to the largest possible time
constexpr double price_factors[] = {1, 0, 0.5, 2};  // partial chains are bounded at these multiples of the best price

// The best chain so far.
class Incumbent {
 public:
  Incumbent(const StrategyChain& chain, double budget) : chain_(chain), budget_(budget) {}

  const std::vector<int>& choice() const { return choice_; }
  StrategyTotal total() const { return total_; }
  double transient_bytes() const { return transient_bytes_; }

  void offer(const Admitted& admitted, const std::vector<int>& items) {
    std::vector<int> choice(items.size());
    double transient = 0;
    for (std::size_t site = 0; site < items.size(); ++site) {
      const Item& item = admitted.at(site)[static_cast<std::size_t>(items[site])];
      choice[site] = item.option;
      transient = std::max(transient, item.transient_bytes);
    }
    const StrategyTotal total = strategy_total(chain_, choice);
    if (total.bytes > budget_ || total.time_s >= total_.time_s) return;
    total_ = total;
    choice_ = std::move(choice);
    transient_bytes_ = transient;
  }

 private:
  const StrategyChain& chain_;
  double budget_;
  std::vector<int> choice_;
  StrategyTotal total_{unbounded, unbounded};
  double transient_bytes_ = 0;
};

// The change of one site's option: its time with both neighbours.
double local_time(const Admitted& admitted, const std::vector<int>& items, std::size_t site, const Item& item) {
  const Prepared& chain = *admitted.chain;
  double time = item.time_s;
  if (site > 0) time += chain.change(admitted.at(site - 1)[static_cast<std::size_t>(items[site - 1])].out, item.in);
  if (site + 1 < items.size())
    time += chain.change(item.out, admitted.at(site + 1)[static_cast<std::size_t>(items[site + 1])].in);
  return time;
}

struct Change {
  double saved_s = 0;
  std::size_t site = 0;
  int item = 0;
};

// The option of a site that saves most time within the room.
Change best_change(const Admitted& admitted, const std::vector<int>& items, std::size_t site, double room) {
  const Items& options = admitted.at(site);
  const Item& now = options[static_cast<std::size_t>(items[site])];
  const double now_s = local_time(admitted, items, site, now);
  Change best{admitted.chain->time_tolerance_s, site, items[site]};
  for (std::size_t i = 0; i < options.size(); ++i) {
    if (options[i].bytes - now.bytes > room) continue;
    const double saved = now_s - local_time(admitted, items, site, options[i]);
    if (saved > best.saved_s) best = {saved, site, static_cast<int>(i)};
  }
  return best;
}

// Spends what is left of the budget, in rounds over the sites, those that save most first, until nothing changes.
std::vector<int> improve(const Admitted& admitted, std::vector<int> items, double budget) {
  double room = budget - path_total(admitted, items).bytes;
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<Change> changes;
    for (std::size_t site = 0; site < items.size(); ++site) changes.push_back(best_change(admitted, items, site, room));
    std::stable_sort(changes.begin(), changes.end(),
                     [](const Change& a, const Change& b) { return a.saved_s > b.saved_s; });
    for (const auto& candidate : changes) {
      const Change change = best_change(admitted, items, candidate.site, room);
      if (change.item == items[change.site]) continue;
      const Items& options = admitted.at(change.site);
      room -= options[static_cast<std::size_t>(change.item)].bytes -
              options[static_cast<std::size_t>(items[change.site])].bytes;
      items[change.site] = change.item;
      changed = true;
    }
  }
  return items;
}

// Chains that fit, made of two around the budget: the start of one with the end of the other, at every place and both
// ways round.
void splice(const Admitted& admitted, const Path& fast, const Path& thin, double room, Incumbent& incumbent) {
  const auto offer = [&](const std::vector<int>& items) {
    if (path_total(admitted, items).bytes <= room) incumbent.offer(admitted, items);
  };
  std::vector<int> best = thin.items;
  StrategyTotal best_total = path_total(admitted, best);
  for (const auto& [head, tail] : {std::pair{&fast, &thin}, std::pair{&thin, &fast}}) {
    std::vector<int> items = tail->items;
    for (std::size_t cut = 0; cut < items.size(); ++cut) {
      items[cut] = head->items[cut];
      const StrategyTotal total = path_total(admitted, items);
      if (total.bytes <= room && total.time_s < best_total.time_s) best = items, best_total = total;
    }
  }
  offer(thin.items);
  offer(best);
  offer(improve(admitted, thin.items, room));
  offer(improve(admitted, best, room));
}

// An interval of thresholds on transient bytes: its options are those of the last, its budget that of the first.
struct Interval {
  double bound_s = 0;
  std::size_t first = 0, last = 0;
  double price_s_per_byte = 0;
  bool operator<(const Interval& other) const {  // the least bound on top; the order of equal ones is fixed
    if (bound_s != other.bound_s) return bound_s > other.bound_s;
    return first > other.first;
  }
};

class Search {
 public:
  Search(const StrategyChain& chain, double budget, const StrategyLimits& limits)
      : budget_(slack_budget(budget)), limits_(limits), prepared_(prepare(chain)), incumbent_(chain, budget_) {}

  StrategyAnswer run() {
    push(0, prepared_.transient_sizes.size() - 1);
    while (!queue_.empty()) {
      const Interval interval = queue_.top();
      queue_.pop();
      if (interval.first == interval.last || interval.bound_s >= aim()) {
        left_s_ = std::min(left_s_, search_lists(interval));
      } else {
        const std::size_t middle = interval.first + (interval.last - interval.first) / 2;
        push(interval.first, middle);
        push(middle + 1, interval.last);
      }
    }
    return conclude();
  }

 private:
  double room(std::size_t threshold) const { return budget_ - prepared_.transient_sizes[threshold]; }

  // Only chains below this are looked for.
  double aim() const { return incumbent_.total().time_s * (1 - std::max(limits_.tolerance, proven_gap)); }

  void push(std::size_t first, std::size_t last) {
    const Admitted admitted = admit(prepared_, prepared_.transient_sizes[last]);
    const Relaxation relaxed = relax(admitted, room(first));
    if (relaxed.bound_s == unbounded) return;
    splice(admitted, relaxed.fast, relaxed.thin, room(last), incumbent_);
    queue_.push({relaxed.bound_s, first, last, relaxed.price_s_per_byte});
  }

  // The least time that a chain of the interval can have, as far as it was searched.
  double search_lists(const Interval& interval) {
    if (interval.bound_s >= aim() || past(limits_)) return interval.bound_s;
    const Admitted admitted = admit(prepared_, prepared_.transient_sizes[interval.first]);
    const double aim_s = aim();
    Pruning pruning{.budget = room(interval.first),
                    .upper_s = aim_s,
                    .suffixes = {},
                    .prefix = {},
                    .least_bytes = {},
                    .any_of = {}};
    for (const double factor : price_factors)
      pruning.suffixes.push_back(suffix_of(admitted, factor * interval.price_s_per_byte));
    pruning.prefix = prefix_of(admitted, pruning.suffixes.front().price_s_per_byte);
    pruning.least_bytes = least_bytes(admitted);
    const Lists lists = grow(admitted, pruning, limits_);
    evaluated_ += lists.evaluated;
    if (!lists.complete) return interval.bound_s;
    const auto& last = lists.at.back();
    const auto quicker = [](const List& a, const List& b) {
      return (a.empty() ? unbounded : a.back().time_s) < (b.empty() ? unbounded : b.back().time_s);
    };
    const auto best = std::min_element(last.begin(), last.end(), quicker);
    if (best->empty()) return aim_s;
    incumbent_.offer(admitted, trace(lists, prepared_.sites() - 1, static_cast<int>(best - last.begin()),
                                     static_cast<std::uint32_t>(best->size() - 1)));
    return best->back().time_s;
  }

  StrategyAnswer conclude() {
    StrategyAnswer answer;
    answer.evaluated = evaluated_;
    if (incumbent_.choice().empty()) {
      answer.shortage = shortage();
      return answer;
    }
    answer.choice = incumbent_.choice();
    answer.time_s = incumbent_.total().time_s;
    answer.bytes = incumbent_.total().bytes;
    const bool proven = left_s_ >= answer.time_s * (1 - 2 * proven_gap);
    answer.status = proven ? StrategyStatus::optimal : StrategyStatus::gap;
    answer.bound_s = proven ? answer.time_s : left_s_;
    answer.gap = proven ? 0 : (answer.time_s - left_s_) / answer.time_s;
    answer.price_s_per_byte = price();
    return answer;
  }

  // Of the relaxation that has the answer's transient bytes.
  double price() const {
    const double transient = incumbent_.transient_bytes();
    return relax(admit(prepared_, transient), budget_ - transient).price_s_per_byte;
  }

  StrategyShortage shortage() const;

  double budget_;
  StrategyLimits limits_;
  Prepared prepared_;
  Incumbent incumbent_;
  std::priority_queue<Interval> queue_;
  double left_s_ = unbounded;  // no chain takes less
  std::int64_t evaluated_ = 0;
};

StrategyShortage Search::shortage() const {
  const std::size_t sites = prepared_.sites();
  std::vector<double> sizes, alone(sites, unbounded), together(sites, unbounded);
  for (const auto& items : prepared_.runs)
    for (const auto& item : items) sizes.push_back(item.transient_bytes);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (const double size : sizes) {
    double sum = 0;
    for (std::size_t site = 0; site < sites; ++site) {
      double least = unbounded;
      for (const auto& item : prepared_.runs[static_cast<std::size_t>(prepared_.run_of[site])])
        if (item.transient_bytes <= size) least = std::min(least, item.bytes);
      sum += least;
      alone[site] = std::min(alone[site], least + size);
      together[site] = std::min(together[site], sum + size);
    }
  }
  const auto over = [this](double bytes) { return bytes > budget_; };
  auto place = std::find_if(alone.begin(), alone.end(), over);
  const bool by_itself = place != alone.end();
  const auto site =
      by_itself ? place - alone.begin() : std::find_if(together.begin(), together.end(), over) - together.begin();
  return {.site = site,
          .alone = by_itself,
          .site_least_bytes = alone[static_cast<std::size_t>(site)],
          .least_bytes = together.back()};
}

void check(const StrategyChain& chain) {
  MOTLEY_CHECK(!chain.runs.empty());
  const auto layouts = chain.layout_change_s.empty() ? 1 : static_cast<int>(chain.layout_change_s.size());
  const auto known = [&](int layout) { return layout >= 0 && layout < layouts; };
  for (const auto& row : chain.layout_change_s) {
    MOTLEY_CHECK(static_cast<int>(row.size()) == layouts);
    for (const double change : row) MOTLEY_CHECK(std::isfinite(change) && change >= 0);
  }
  for (const auto& run : chain.runs) {
    MOTLEY_CHECK(run.repeat > 0 && !run.options.empty() && run.options.size() < 65536);
    for (const auto& option : run.options) {
      for (const double figure :
           {option.time_s, option.sync_s, option.bytes, option.bytes_in_flight, option.transient_bytes})
        MOTLEY_CHECK(std::isfinite(figure) && figure >= 0);
      MOTLEY_CHECK(known(option.layout_in) && known(option.layout_out));
    }
  }
}

// extra[a][b]: the most by which cost(a, x) exceeds cost(b, x) over all x, or 0.
std::vector<double> extras(int layouts, const std::function<double(int, int)>& cost) {
  std::vector<double> extra;
  for (int a = 0; a < layouts; ++a)
    for (int b = 0; b < layouts; ++b) {
      double most = 0;
      for (int x = 0; x < layouts; ++x) most = std::max(most, cost(a, x) - cost(b, x));
      extra.push_back(most);
    }
  return extra;
}

}  // namespace

Prepared prepare(const StrategyChain& chain) {
  check(chain);
  Prepared prepared;
  prepared.layouts = std::max(1, static_cast<int>(chain.layout_change_s.size()));
  for (const auto& row : chain.layout_change_s)
    for (const double change : row) prepared.change_s.push_back(chain.micro_batches * change);
  if (prepared.change_s.empty()) prepared.change_s = {0};
  const auto change = [&](int from, int to) { return prepared.change(from, to); };
  prepared.entry_extra_s = extras(prepared.layouts, [&](int a, int x) { return change(x, a); });
  prepared.exit_extra_s = extras(prepared.layouts, change);
  double least_transient = 0;
  for (const auto& run : chain.runs) {
    Items items;
    double least = unbounded, slowest = 0;
    for (const auto& option : run.options) {
      items.push_back({.time_s = chain.micro_batches * option.time_s + option.sync_s,
                       .bytes = option.bytes + chain.in_flight * option.bytes_in_flight,
                       .transient_bytes = option.transient_bytes,
                       .in = option.layout_in,
                       .out = option.layout_out,
                       .option = static_cast<int>(items.size())});
      least = std::min(least, option.transient_bytes);
      slowest = std::max(slowest, items.back().time_s);
      prepared.transient_sizes.push_back(option.transient_bytes);
    }
    least_transient = std::max(least_transient, least);
    prepared.time_tolerance_s += same_time * static_cast<double>(run.repeat) * slowest;
    prepared.run_of.insert(prepared.run_of.end(), static_cast<std::size_t>(run.repeat),
                           static_cast<int>(prepared.runs.size()));
    prepared.runs.push_back(std::move(items));
  }
  auto& sizes = prepared.transient_sizes;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  sizes.erase(sizes.begin(), std::lower_bound(sizes.begin(), sizes.end(), least_transient));
  return prepared;
}

namespace {

// The options that no other beats, in their order.
Items unbeaten(const Prepared& chain, const Items& open) {
  struct Quickest {  // of the options so far that enter and leave by these layouts
    int in = 0, out = 0;
    double time_s = unbounded;
  };
  std::vector<Quickest> classes;
  std::vector<std::size_t> by_bytes(open.size());
  std::iota(by_bytes.begin(), by_bytes.end(), std::size_t{0});
  std::stable_sort(by_bytes.begin(), by_bytes.end(), [&](std::size_t a, std::size_t b) {
    return open[a].bytes != open[b].bytes ? open[a].bytes < open[b].bytes : open[a].time_s < open[b].time_s;
  });
  const auto at = [&](int a, int b) { return static_cast<std::size_t>(a * chain.layouts + b); };
  std::vector<bool> kept(open.size(), false);
  for (const std::size_t i : by_bytes) {
    const Item& item = open[i];
    Quickest* own = nullptr;
    bool beaten = false;
    for (auto& other : classes) {
      beaten = beaten || other.time_s + chain.entry_extra_s[at(other.in, item.in)] +
                                 chain.exit_extra_s[at(other.out, item.out)] <=
                             item.time_s;
      if (other.in == item.in && other.out == item.out) own = &other;
    }
    if (beaten) continue;
    kept[i] = true;
    if (own)
      own->time_s = item.time_s;
    else
      classes.push_back({item.in, item.out, item.time_s});
  }
  Items some;
  for (std::size_t i = 0; i < open.size(); ++i)
    if (kept[i]) some.push_back(open[i]);
  return some;
}

}  // namespace

Admitted admit(const Prepared& chain, double threshold) {
  Admitted admitted{.chain = &chain, .runs = {}};
  for (const auto& run : chain.runs) {
    Items open;
    for (const auto& item : run)
      if (item.transient_bytes <= threshold) open.push_back(item);
    admitted.runs.push_back(unbeaten(chain, open));
  }
  return admitted;
}

}  // namespace strategy

StrategyAnswer solve_strategy_chain(const StrategyChain& chain, double budget_bytes, const StrategyLimits& limits) {
  return strategy::Search(chain, budget_bytes, limits).run();
}

}  // namespace motley
