// The chain under a price on bytes: a shortest path, and the price at which its bound on the budget is greatest.
#include <algorithm>
#include <cmath>

#include "motley/solve/strategy_lists.hpp"

namespace motley::strategy {
namespace {

// Compared first by what is asked for, then by the other.
struct Value {
  double first = unbounded;
  double second = unbounded;
  bool operator<(const Value& other) const {
    return first != other.first ? first < other.first : second < other.second;
  }
};

struct Weights {
  double time = 1;
  double bytes = 0;
  Value of(double time_s, double byte_count) const {
    return {time * time_s + bytes * byte_count, time == 0 ? time_s : byte_count};
  }
};

struct Step {
  int item = -1;
  int from = 0;  // layout before
};

}  // namespace

StrategyTotal path_total(const Admitted& admitted, const std::vector<int>& items) {
  StrategyTotal total;
  int before = -1;
  for (std::size_t site = 0; site < items.size(); ++site) {
    const Item& item = admitted.at(site)[static_cast<std::size_t>(items[site])];
    total.time_s += item.time_s;
    if (before >= 0) total.time_s += admitted.chain->change(before, item.in);
    total.bytes += item.bytes;
    before = item.out;
  }
  return total;
}

Path shortest(const Admitted& admitted, double time_weight, double byte_weight) {
  const Prepared& chain = *admitted.chain;
  const Weights weights{time_weight, byte_weight};
  const std::size_t layouts = static_cast<std::size_t>(chain.layouts), sites = chain.sites();
  std::vector<Step> steps(sites * layouts);
  std::vector<Value> best(layouts), entry(layouts);
  std::vector<int> entry_from(layouts, -1);
  for (std::size_t site = 0; site < sites; ++site) {
    for (std::size_t to = 0; to < layouts; ++to) {
      entry[to] = site == 0 ? Value{0, 0} : Value{};
      for (std::size_t from = 0; site > 0 && from < layouts; ++from) {
        const Value change = weights.of(chain.change(static_cast<int>(from), static_cast<int>(to)), 0);
        const Value value{best[from].first + change.first, best[from].second + change.second};
        if (value < entry[to]) entry[to] = value, entry_from[to] = static_cast<int>(from);
      }
    }
    std::fill(best.begin(), best.end(), Value{});
    const Items& items = admitted.at(site);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Value own = weights.of(items[i].time_s, items[i].bytes);
      const auto in = static_cast<std::size_t>(items[i].in), out = static_cast<std::size_t>(items[i].out);
      const Value value{entry[in].first + own.first, entry[in].second + own.second};
      if (!(value < best[out])) continue;
      best[out] = value;
      steps[site * layouts + out] = {static_cast<int>(i), entry_from[in]};
    }
  }
  Path path;
  path.items.resize(sites);
  auto layout = static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  for (std::size_t site = sites; site-- > 0;) {
    const Step& step = steps[site * layouts + layout];
    path.items[site] = step.item;
    if (site > 0) layout = static_cast<std::size_t>(step.from);
  }
  const StrategyTotal total = path_total(admitted, path.items);
  path.time_s = total.time_s;
  path.bytes = total.bytes;
  return path;
}

Relaxation relax(const Admitted& admitted, double budget) {
  Relaxation relaxed;
  for (const auto& run : admitted.runs)
    if (run.empty()) return relaxed;
  relaxed.thin = shortest(admitted, 0, 1);
  if (relaxed.thin.bytes > budget) return relaxed;
  relaxed.fast = shortest(admitted, 1, 0);
  relaxed.bound_s = relaxed.fast.time_s;
  if (relaxed.fast.bytes <= budget) {
    relaxed.thin = relaxed.fast;
    return relaxed;
  }
  // The bound is a concave function of the price, and every chain a line above it: the next price is where the lines of
  // the two chains around the budget meet, until no chain lies below that point.
  for (int round = 0; round < 100; ++round) {
    const double price = (relaxed.thin.time_s - relaxed.fast.time_s) / (relaxed.fast.bytes - relaxed.thin.bytes);
    Path middle = shortest(admitted, 1, price);
    const double value = middle.time_s + price * middle.bytes;
    const double bound = value - price * budget;
    if (bound > relaxed.bound_s) relaxed.bound_s = bound, relaxed.price_s_per_byte = price;
    const double meeting = relaxed.fast.time_s + price * relaxed.fast.bytes;
    if (value >= meeting - 1e-13 * std::abs(meeting)) break;
    (middle.bytes <= budget ? relaxed.thin : relaxed.fast) = std::move(middle);
  }
  return relaxed;
}

std::vector<Path> relaxation_hull(const Admitted& admitted, const StrategyLimits& limits) {
  std::vector<Path> hull;
  for (const auto& run : admitted.runs)
    if (run.empty()) return hull;
  std::vector<Path> faster = {shortest(admitted, 1, 0)};  // the nearest on top
  hull.push_back(shortest(admitted, 0, 1));
  while (!faster.empty()) {
    const Path &thin = hull.back(), &fast = faster.back();
    if (thin.bytes < fast.bytes && thin.time_s > fast.time_s && !past(limits)) {
      const double price = (thin.time_s - fast.time_s) / (fast.bytes - thin.bytes);
      Path middle = shortest(admitted, 1, price);
      const double meeting = fast.time_s + price * fast.bytes;
      const bool between = middle.bytes > thin.bytes && middle.bytes < fast.bytes;
      if (between && middle.time_s + price * middle.bytes < meeting - 1e-12 * std::abs(meeting)) {
        faster.push_back(std::move(middle));
        continue;
      }
    }
    if (fast.time_s < thin.time_s) hull.push_back(fast);
    faster.pop_back();
  }
  return hull;
}

Suffix suffix_of(const Admitted& admitted, double price_s_per_byte) {
  const Prepared& chain = *admitted.chain;
  const std::size_t layouts = static_cast<std::size_t>(chain.layouts), sites = chain.sites();
  Suffix suffix{price_s_per_byte, std::vector<double>((sites + 1) * layouts, 0.0)};
  std::vector<double> by_entry(layouts);
  for (std::size_t site = sites; site-- > 0;) {
    std::fill(by_entry.begin(), by_entry.end(), unbounded);
    for (const auto& item : admitted.at(site)) {
      double& entered = by_entry[static_cast<std::size_t>(item.in)];
      entered = std::min(entered, item.time_s + price_s_per_byte * item.bytes +
                                      suffix.least[(site + 1) * layouts + static_cast<std::size_t>(item.out)]);
    }
    for (std::size_t from = 0; from < layouts; ++from) {
      double least = unbounded;
      for (std::size_t to = 0; to < layouts; ++to)
        least = std::min(least, by_entry[to] + chain.change(static_cast<int>(from), static_cast<int>(to)));
      suffix.least[site * layouts + from] = least;
    }
  }
  return suffix;
}

std::vector<double> prefix_of(const Admitted& admitted, double price_s_per_byte) {
  const Prepared& chain = *admitted.chain;
  const std::size_t layouts = static_cast<std::size_t>(chain.layouts), sites = chain.sites();
  std::vector<double> least(sites * layouts, 0.0), by_exit(layouts);
  for (std::size_t site = 0; site + 1 < sites; ++site) {
    std::fill(by_exit.begin(), by_exit.end(), unbounded);
    for (const auto& item : admitted.at(site)) {
      double& left = by_exit[static_cast<std::size_t>(item.out)];
      left = std::min(left, least[site * layouts + static_cast<std::size_t>(item.in)] + item.time_s +
                                price_s_per_byte * item.bytes);
    }
    for (std::size_t to = 0; to < layouts; ++to) {
      double entered = unbounded;
      for (std::size_t from = 0; from < layouts; ++from)
        entered = std::min(entered, by_exit[from] + chain.change(static_cast<int>(from), static_cast<int>(to)));
      least[(site + 1) * layouts + to] = entered;
    }
  }
  return least;
}

std::vector<double> least_bytes(const Admitted& admitted) {
  std::vector<double> least(admitted.chain->sites() + 1, 0.0);
  for (std::size_t site = admitted.chain->sites(); site-- > 0;) {
    double here = unbounded;
    for (const auto& item : admitted.at(site)) here = std::min(here, item.bytes);
    least[site] = least[site + 1] + here;
  }
  return least;
}

}  // namespace motley::strategy
