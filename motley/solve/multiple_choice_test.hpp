// The multiple-choice knapsack as a linear programme: every site may mix its options. Without layout changes and
// transient bytes this is the relaxation of a strategy chain, and solved by sorting: each site's options on the lower
// convex hull of (bytes, time), steps along the hulls taken by what they save per byte (Sinha and Zoltners 1979).
#pragma once

#include <algorithm>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/solve/strategy_chain.hpp"
#include "motley/solve/strategy_lists.hpp"

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

namespace {

struct Point {
  double bytes = 0, time_s = 0;
  int option = 0;
};

// From least bytes on; each step saves less time per byte than the one before.
std::vector<Point> lower_hull(const StrategyChain& chain, const StrategyRun& run) {
  std::vector<Point> points;
  for (const auto& option : run.options)
    points.push_back({option.bytes + chain.in_flight * option.bytes_in_flight,
                      chain.micro_batches * option.time_s + option.sync_s, static_cast<int>(points.size())});
  std::stable_sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.time_s < b.time_s;
  });
  std::vector<Point> hull;
  for (const auto& point : points) {
    if (!hull.empty() && point.time_s >= hull.back().time_s) continue;
    while (hull.size() > 1) {
      const Point &a = hull[hull.size() - 2], &b = hull.back();
      if ((a.time_s - b.time_s) * (point.bytes - b.bytes) > (b.time_s - point.time_s) * (b.bytes - a.bytes)) break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}

struct HullStep {
  std::size_t site = 0;
  double bytes = 0, saved_s = 0;
  int option = 0;
  double rate() const { return bytes > 0 ? saved_s / bytes : std::numeric_limits<double>::infinity(); }
};

}  // namespace

inline MultipleChoiceRelaxation relax_multiple_choice(const StrategyChain& chain, double budget_bytes) {
  MultipleChoiceRelaxation relaxed;
  std::vector<HullStep> steps;
  double bytes = 0;
  for (const auto& run : chain.runs) {
    const std::vector<Point> hull = lower_hull(chain, run);
    for (std::int64_t i = 0; i < run.repeat; ++i) {
      bytes += hull.front().bytes;
      relaxed.bound_s += hull.front().time_s;
      for (std::size_t p = 1; p < hull.size(); ++p)
        steps.push_back({relaxed.rounded.size(), hull[p].bytes - hull[p - 1].bytes, hull[p - 1].time_s - hull[p].time_s,
                         hull[p].option});
      relaxed.rounded.push_back(hull.front().option);
    }
  }
  relaxed.rounded_s = relaxed.bound_s;
  const double budget = strategy::slack_budget(budget_bytes);
  relaxed.feasible = bytes <= budget;
  if (!relaxed.feasible) return relaxed;
  std::stable_sort(steps.begin(), steps.end(),
                   [](const HullStep& a, const HullStep& b) { return a.rate() > b.rate(); });
  for (const auto& step : steps) {
    relaxed.price_s_per_byte = step.rate();
    if (bytes + step.bytes > budget) {
      const double share = (budget_bytes - bytes) / step.bytes;
      relaxed.mixed_sites = share > 0 ? 1 : 0;
      relaxed.bound_s -= std::max(0.0, share) * step.saved_s;
      return relaxed;
    }
    bytes += step.bytes;
    relaxed.bound_s -= step.saved_s;
    relaxed.rounded_s -= step.saved_s;
    relaxed.rounded[step.site] = step.option;
  }
  relaxed.price_s_per_byte = 0;
  return relaxed;
}

}  // namespace motley
