// The front of bytes and time of a chain: lists between the ends of its relaxation.
#include <algorithm>

#include "motley/solve/strategy_lists.hpp"

namespace motley {

using strategy::Admitted;
using strategy::Lists;

namespace {

// What is known of the chains within one threshold on transient bytes, besides the points that were found.
struct ThresholdBound {
  std::vector<strategy::Path> hull;  // bytes with the threshold
  double tolerance = 0;              // no chain is quicker than a point found by more than this share; 1: not known

  // No chain within this many bytes takes less.
  double at(double bytes) const {
    const auto above = std::upper_bound(hull.begin(), hull.end(), bytes,
                                        [](double b, const strategy::Path& path) { return b < path.bytes; });
    if (above == hull.begin()) return strategy::unbounded;
    const strategy::Path& below = *(above - 1);
    if (above == hull.end()) return below.time_s;
    return below.time_s - (below.time_s - above->time_s) * (bytes - below.bytes) / (above->bytes - below.bytes);
  }
};

class FrontSearch {
 public:
  FrontSearch(const StrategyChain& chain, const StrategyLimits& limits)
      : chain_(chain), limits_(limits), prepared_(strategy::prepare(chain)) {}

  StrategyFront run() {
    for (const double size : prepared_.transient_sizes) search(size);
    keep_best();
    for (std::size_t i = 0; i < front_.points.size(); ++i) {
      // Budgets from this point up to the next one.
      const double time_s = front_.points[i].time_s;
      const double end = i + 1 < front_.points.size() ? front_.points[i + 1].bytes : strategy::unbounded;
      for (const auto& bound : bounds_)
        front_.gap_s = std::max(front_.gap_s, std::min(bound.tolerance * time_s, time_s - bound.at(end)));
    }
    return std::move(front_);
  }

 private:
  void search(double transient) {
    const Admitted admitted = strategy::admit(prepared_, transient);
    ThresholdBound bound{strategy::relaxation_hull(admitted, limits_), limits_.tolerance};
    for (const auto& path : bound.hull) add(admitted, path.items);
    const strategy::Pruning pruning = between_hull(admitted, bound.hull);
    if (!pruning.any_of.empty()) {
      const Lists lists = strategy::grow(admitted, pruning, limits_);
      front_.evaluated += lists.evaluated;
      if (!lists.complete) bound.tolerance = 1;
      for (std::size_t layout = 0; lists.complete && layout < lists.at.back().size(); ++layout)
        for (std::size_t i = 0; i < lists.at.back()[layout].size(); ++i)
          add(admitted,
              strategy::trace(lists, lists.at.size() - 1, static_cast<int>(layout), static_cast<std::uint32_t>(i)));
    }
    if (bound.tolerance == 0) return;
    for (auto& path : bound.hull) path.bytes += transient;
    bounds_.push_back(std::move(bound));
  }

  // Between two ends of the relaxation, a chain is of interest where it beats the first by more than the tolerance.
  strategy::Pruning between_hull(const Admitted& admitted, const std::vector<strategy::Path>& hull) const {
    strategy::Pruning pruning;
    for (std::size_t i = 0; i + 1 < hull.size(); ++i) {
      const double step_s = hull[i].time_s - hull[i + 1].time_s;
      if (step_s <= limits_.tolerance * hull[i].time_s) continue;
      const double price = step_s / (hull[i + 1].bytes - hull[i].bytes);
      pruning.any_of.push_back(
          {strategy::suffix_of(admitted, price), (1 - limits_.tolerance) * hull[i].time_s + price * hull[i + 1].bytes});
    }
    return pruning;
  }

  void add(const Admitted& admitted, const std::vector<int>& items) {
    StrategyFront::Point point;
    for (std::size_t site = 0; site < items.size(); ++site)
      point.choice.push_back(admitted.at(site)[static_cast<std::size_t>(items[site])].option);
    const StrategyTotal total = strategy_total(chain_, point.choice);
    point.time_s = total.time_s;
    point.bytes = total.bytes;
    front_.points.push_back(std::move(point));
  }

  void keep_best() {
    std::stable_sort(front_.points.begin(), front_.points.end(),
                     [](const StrategyFront::Point& a, const StrategyFront::Point& b) {
                       return a.bytes != b.bytes ? a.bytes < b.bytes : a.time_s < b.time_s;
                     });
    std::vector<StrategyFront::Point> kept;
    for (auto& point : front_.points) {
      if (!kept.empty() && point.time_s >= kept.back().time_s - prepared_.time_tolerance_s) continue;
      if (!kept.empty() && point.bytes <= strategy::slack_budget(kept.back().bytes)) kept.pop_back();
      kept.push_back(std::move(point));
    }
    front_.points = std::move(kept);
  }

  const StrategyChain& chain_;
  StrategyLimits limits_;
  strategy::Prepared prepared_;
  std::vector<ThresholdBound> bounds_;
  StrategyFront front_;
};

}  // namespace

StrategyFront strategy_front(const StrategyChain& chain, const StrategyLimits& limits) {
  return FrontSearch(chain, limits).run();
}

}  // namespace motley
