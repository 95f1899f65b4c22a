// Annealing over placements: a move changes a few ranges, the flow is repaired, the move stays or is undone.
#include <utility>

#include "motley/planner/serve/placement/placement_search.hpp"

namespace motley {
namespace {

class RangeAnnealing {
 public:
  RangeAnnealing(const PlacementProblem& problem, const Placement& start, RandomStream random)
      : problem_(problem), flow_(problem), random_(random), nodes_(std::ssize(problem.nodes)) {
    flow_.place(start);
    value_ = flow_.maximise();
    keep_best();
  }

  void run(const AnnealingBudget& budget) {
    const double scale = value_ > 0 ? value_ : budget.bound / 2;
    for (std::int64_t step = 0; step < budget.moves && best_.tokens_per_s < budget.bound * bound_reached; ++step) {
      if (budget.stop()) return;
      ++best_.evaluated;
      if (!propose()) continue;
      const double value = try_changes();
      const double temperature =
          annealing_temperature(budget.hottest * scale, static_cast<double>(step) / static_cast<double>(budget.moves));
      if (value >= value_ || random_.chance(std::exp((value - value_) / temperature))) {
        value_ = value;
        if (value > best_.tokens_per_s) keep_best();
      } else {
        undo();
      }
    }
  }

  const Annealed& best() const { return best_; }

 private:
  using Change = std::pair<int, LayerRange>;

  void keep_best() {
    best_.placement = flow_.placement();
    best_.tokens_per_s = value_;
    limiting_ = flow_.limiting_nodes();
  }

  const LayerRange& range(int node) const { return flow_.placement()[node]; }
  int any_node() { return static_cast<int>(random_.below(nodes_)); }
  // Every other time one whose rate limits the flow.
  int aimed_node() {
    return limiting_.empty() || random_.chance(0.5) ? any_node() : limiting_[random_.below(std::ssize(limiting_))];
  }

  // Fills changes_; false where the move makes no sense here.
  bool propose() {
    changes_.clear();
    switch (random_.below(8)) {
      case 0: return join();
      case 1: return span();
      case 2: return swap();
      case 3: return split();
      case 4: return stretch();
      case 5: return exchange_stages();
      default: return shift_boundaries();
    }
  }

  bool change(int node, LayerRange to) {
    if (to == range(node)) return true;
    if (!problem_.fits(node, to)) return false;
    changes_.push_back({node, to});
    return true;
  }

  // A node goes where another is, preferably where the flow is limited.
  bool join() {
    const int node = any_node(), other = aimed_node();
    return range(other).size() > 0 && change(node, range(other)) && !changes_.empty();
  }

  // A node spans from where one begins to where another ends.
  bool span() {
    const int node = any_node();
    const LayerRange to{range(aimed_node()).first, range(any_node()).end};
    return to.size() > 0 && change(node, to) && !changes_.empty();
  }

  bool swap() {
    const int a = any_node(), b = any_node();
    if (range(a) == range(b)) return false;
    return change(a, range(b)) && change(b, range(a));
  }

  // Two nodes share what one holds.
  bool split() {
    const int a = aimed_node(), b = any_node();
    const LayerRange whole = range(a);
    if (a == b || whole.size() < 2) return false;
    const std::int64_t middle = whole.first + 1 + random_.below(whole.size() - 1);
    const bool front = random_.chance(0.5);
    return change(front ? a : b, {whole.first, middle}) && change(front ? b : a, {middle, whole.end});
  }

  bool stretch() {
    const int node = any_node();
    LayerRange to = range(node);
    if (to.size() == 0) return false;
    const std::int64_t by = random_.chance(0.5) ? 1 : -1;
    const std::int64_t ends = random_.below(3);
    if (ends != 0) to.first += by;
    if (ends != 1) to.end += by;
    return to.size() > 0 && change(node, to);
  }

  // Every boundary in [low, high] moves by a layer: what ends at `low` loses (or gains) what begins at `high` gains (or
  // loses), and all between slide along.
  bool shift_boundaries() {
    const LayerRange& from = range(aimed_node());
    const LayerRange& to = range(any_node());
    if (from.size() == 0 || to.size() == 0) return false;
    std::int64_t low = random_.chance(0.5) ? from.first : from.end;
    std::int64_t high = random_.chance(0.3) ? low : random_.chance(0.5) ? to.first : to.end;
    if (low > high) std::swap(low, high);
    if (low == 0 || high == problem_.layers) return false;
    const std::int64_t by = random_.chance(0.5) ? 1 : -1;
    return map_boundaries([&](std::int64_t at) { return at >= low && at <= high ? at + by : at; });
  }

  template <class Map>
  bool map_boundaries(Map map) {
    for (int node = 0; node < nodes_; ++node) {
      const LayerRange& old = range(node);
      if (old.size() == 0) continue;
      const LayerRange moved{map(old.first), map(old.end)};
      if (moved.size() <= 0 || !change(node, moved)) return false;
    }
    return !changes_.empty();
  }

  // All that hold one range and all that hold a later one change their places in the chain, with their sizes.
  bool exchange_stages() {
    LayerRange a = range(any_node()), b = range(aimed_node());
    if (a.first > b.first) std::swap(a, b);
    if (a.size() == 0 || b.size() == 0 || a.end > b.first) return false;
    const std::int64_t slide = b.size() - a.size();
    const auto map = [&](std::int64_t at) { return at >= a.end && at <= b.first ? at + slide : at; };
    for (int node = 0; node < nodes_; ++node) {
      const LayerRange& old = range(node);
      if (old.size() == 0) continue;
      LayerRange moved{map(old.first), map(old.end)};
      if (old == a) moved = {b.end - a.size(), b.end};
      if (old == b) moved = {a.first, a.first + b.size()};
      if (moved.size() <= 0 || !change(node, moved)) return false;
    }
    return !changes_.empty();
  }

  double try_changes() {
    before_ = flow_.placement();
    Placement after = before_;
    for (const auto& [node, to] : changes_) after[node] = to;
    flow_.place(after);
    return flow_.maximise();
  }

  void undo() { flow_.place(before_); }

  const PlacementProblem& problem_;
  PlacementFlow flow_;
  RandomStream random_;
  std::int64_t nodes_;
  double value_ = 0;
  std::vector<int> limiting_;
  std::vector<Change> changes_;
  Placement before_;
  Annealed best_;
};

}  // namespace

Annealed anneal_ranges(const PlacementProblem& problem, const Placement& start, RandomStream random,
                       const AnnealingBudget& budget) {
  RangeAnnealing annealing(problem, start, random);
  annealing.run(budget);
  return annealing.best();
}

}  // namespace motley
