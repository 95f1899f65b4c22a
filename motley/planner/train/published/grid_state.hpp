// The search's view of a grid: devices with the same links are one class, and a stage is how many it has of each.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/planner/train/published/grid_problem.hpp"
#include "motley/solve/matching.hpp"
#include "motley/solve/path.hpp"

namespace motley {

struct GridClasses {
  std::vector<std::vector<int>> devices;    // of every class
  std::vector<double> sync_s, hop_s;        // between classes, row-major; on the diagonal inside one
  std::vector<std::pair<int, int>> by_hop;  // pairs of classes, shortest hop first
  int count() const { return static_cast<int>(devices.size()); }
  std::size_t at(int a, int b) const { return static_cast<std::size_t>(a * count() + b); }
};
GridClasses grid_classes(const DtfmPairs& pairs);

using Counts = std::vector<std::int16_t>;  // devices of every class

// What the search minimises in addition to the cost itself: the mean of all stages and of all matched pairs, not only
// the worst. A cost made of maxima has plateaus; this slopes.
constexpr double slope = 0.05;

// A hop between two stages.
struct HopWeights {
  double bottleneck_s = 0;
  double mean_s = 0;  // over the pairs of a greedy matching, shortest first
};

class GridState {
 public:
  GridState(const GridProblem& problem, const GridClasses& classes);

  // One entry per stage, then the idle devices.
  void assign(std::vector<Counts> parts);
  const std::vector<Counts>& parts() const { return parts_; }

  // A part (the last one is the idle devices) as it might become.
  struct Change {
    int part = 0;
    Counts counts;
  };
  // The slope's objective with these parts changed, each named once. Larger than `limit` where it surely is; then
  // nothing may be applied.
  double propose(const std::vector<Change>& changes, double limit);
  void apply();  // what propose() last priced
  bool alike(int i, int j) const { return keys_[static_cast<std::size_t>(i)] == keys_[static_cast<std::size_t>(j)]; }

  double objective_s() const { return objective_; }
  double cost_s() const { return cost_; }
  std::int64_t evaluated() const { return evaluated_; }

 private:
  struct Cached {
    std::uint64_t key = 0;
    HopWeights hop;
  };
  double sync_of(const Counts& part) const;
  std::uint64_t key_of(const Counts& part) const;
  const HopWeights* known_hop(std::uint64_t key) const;
  double least_bottleneck(const Counts& a, const Counts& b);
  const std::vector<std::pair<int, int>>& pairs_by_hop(const Counts& a, const Counts& b);
  HopWeights match(const Counts& a, const Counts& b);
  void weigh();            // weights_ from the trial's hops
  double path_bound();     // of weights_: no path is shorter
  double shortest_path();  // of weights_; leaves the order in trial_.order

  const GridProblem& problem_;
  const GridClasses& classes_;
  int stages_;
  std::vector<std::uint64_t> marks_;  // of the classes: a part's key is their sum
  double least_hop_ = 0;

  std::vector<Counts> parts_;
  std::vector<std::uint64_t> keys_;
  std::vector<double> sync_;
  std::vector<HopWeights> hops_;  // stages x stages
  std::vector<int> order_;        // of the stages
  double objective_ = 0, cost_ = 0;

  struct Trial {
    std::vector<Change> changes;
    std::vector<std::uint64_t> keys;
    std::vector<double> sync;
    std::vector<HopWeights> hops;
    std::vector<int> order;
    double objective = 0, cost = 0;
  } trial_;
  struct Unknown {
    std::size_t a = 0, b = 0;  // stages
    std::uint64_t key = 0;
  };
  std::vector<Unknown> unknown_;
  std::vector<Cached> cache_;
  GrowingMatching matching_;
  HeldKarp path_;
  std::vector<double> weights_, reached_;
  Counts left_a_, left_b_;
  std::vector<int> first_a_, first_b_;
  std::vector<std::size_t> present_;
  std::vector<double> least_of_column_;
  std::vector<std::pair<int, int>> pairs_;
  std::int64_t evaluated_ = 0;
};

// The devices of a state, with the best order and pipelines: the published objective.
DtfmAssignment assignment_of(const GridProblem& problem, const GridClasses& classes, const std::vector<Counts>& parts);

// Partitions that islands of fast links suggest, at every speed that tells islands apart.
std::vector<std::vector<Counts>> structured_starts(const GridProblem& problem, const GridClasses& classes);
std::vector<Counts> random_start(const GridProblem& problem, const GridClasses& classes, std::uint64_t seed,
                                 std::uint64_t stream);

}  // namespace motley
