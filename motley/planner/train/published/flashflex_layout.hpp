// Replicas of unlike stages: which devices work together, in which order, with how many layers and how much of the
// batch. Priced by the form `flashflex`. docs/figures/flashflex.md.
//
// Devices of one machine that nothing tells apart are a kind; a unit is a kind with a tensor-parallel degree; a stage
// is a unit. A replica is then how many stages it has of every unit: their order and layers follow from that.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/cost/published/flashflex.hpp"
#include "motley/planner/train/plan/apportion.hpp"
#include "motley/planner/train/plan/make_train_plan.hpp"

namespace motley {

constexpr double infinity = std::numeric_limits<double>::infinity();  // seconds of what cannot be

struct LayoutUnit {
  int kind = 0;
  int degree = 1;
};

// What the search asks about units, computed once.
struct LayoutTables {
  std::int64_t layers = 0;              // of the model
  std::int64_t micro_batches = 0;       // of a step, over all replicas
  std::vector<std::vector<int>> kinds;  // devices of each
  std::vector<LayoutUnit> units;
  std::vector<double> layer_s;                  // of a unit, one layer and micro-batch
  std::vector<double> hop_s;                    // from unit to unit, row-major
  std::vector<double> kind_bytes_per_s;         // from kind to kind, row-major
  double pipeline_factor = 1, sync_factor = 1;  // what the form makes of either in a step
  double layer_gradient_bytes = 0;              // that a sync counts with, of a whole layer
  std::vector<std::vector<std::int64_t>>
      most_layers[4];  // by first + 2 * last: of a unit, by stages from it to the end

  int unit_count() const { return static_cast<int>(units.size()); }
  int kind_of(int unit) const { return units[static_cast<std::size_t>(unit)].kind; }
  int degree_of(int unit) const { return units[static_cast<std::size_t>(unit)].degree; }
  double hop(int from, int to) const { return hop_s[static_cast<std::size_t>(from * unit_count() + to)]; }
  // Most layers in the memory of a stage that has `from_end` stages from it to the last, itself counted.
  std::int64_t capacity(int unit, bool first, bool last, std::size_t from_end) const;
};

struct LayoutProblem {
  const Cluster& cluster;
  const Model& model;
  const Workload& workload;
  CostOptions cost;
  std::int64_t micro_batch = 1;           // sequences
  bool recompute = true;                  // every layer
  std::int64_t stages = 0, replicas = 0;  // fixed; 0: free
};
LayoutTables layout_tables(const LayoutProblem& problem);

// A replica with its stages in order.
struct LaidReplica {
  std::vector<int> units;
  std::vector<std::int64_t> layers;
  std::vector<double> seconds;  // of a stage and micro-batch, its hop included
  ReplicaPace pace = {};        // in lockstep
  double busiest_s() const;
};
ReplicaPace lockstep_pace(const std::vector<double>& seconds);

// The order and the layers with the least busiest stage: a dynamic programme over how many of every unit stand behind
// (at most `most_states` of such), a plausible order improved otherwise; among equals, less time to fill and drain.
// Nothing where memory does not hold the layers.
std::optional<LaidReplica> lay_out(const LayoutTables& tables, const std::vector<int>& unit_counts,
                                   std::int64_t micro_batches);

struct LayoutPlan {
  std::vector<LaidReplica> replicas;
  std::vector<std::int64_t> micro_batches;
  double step_s = 0;
};
// Prices replicas that are laid out; the sum of the form's terms.
LayoutPlan price_layout(const LayoutTables& tables, std::vector<LaidReplica> replicas);

struct LayoutOptions {
  std::uint64_t seed = 0;
  Instant deadline = Instant::max();
};
struct LayoutOutcome {
  std::optional<LayoutPlan> best;
  double bound_s = 0;  // no layout takes less
  SearchStatus status = SearchStatus::heuristic;
  std::int64_t evaluated = 0;
};
LayoutOutcome search_layout(const LayoutProblem& problem, const LayoutTables& tables, const LayoutOptions& options);

// All layouts, where there are at most `most`; nothing where there are more.
std::optional<LayoutOutcome> enumerate_layouts(const LayoutProblem& problem, const LayoutTables& tables,
                                               std::int64_t most);

// With devices for the units.
TrainLayout placed_layout(const LayoutProblem& problem, const LayoutTables& tables, const LayoutPlan& layout);

}  // namespace motley
