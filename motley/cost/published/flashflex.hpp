// The cost form `flashflex`: training over unlike replicas and stages as the code published with FlashFlex / HexiScale
// (arXiv 2409.01143) counts it, quirks included. docs/figures/flashflex.md has the formulas, and where they depart from
// a run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/train_form.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// A stage as the form sees it: its devices, all tensor parallel.
using FlashflexGroup = std::vector<int>;

class FlashflexForm {
 public:
  // `micro_batch`: sequences. Throws an input error where a device has no fp16 rate. Cluster must outlive it.
  FlashflexForm(const CostOptions& options, const Cluster& cluster, const Architecture& arch, const Training& training,
                double micro_batch);

  // Seconds of one micro-batch, forward and backward together.
  double compute_s(const FlashflexGroup& group) const;     // of one layer; all ranks as fast as the first
  double collective_s(const FlashflexGroup& group) const;  // of one layer
  double layer_s(const FlashflexGroup& group) const { return compute_s(group) + collective_s(group); }
  double hop_s(const FlashflexGroup& from, const FlashflexGroup& to) const;

  // What the sync of one layer takes between the groups that hold it, one per replica. Throws an input error where a
  // degree does not divide the largest.
  double sync_s(std::span<const FlashflexGroup* const> owners) const;

  // Of a step: the slowest pipeline and the syncs of all layers.
  double step_s(double pipeline_s, double sync_s) const { return pipeline_factor * pipeline_s + sync_factor_ * sync_s; }

  // Bytes on every rank, and what the form takes to be there.
  double memory_bytes(const FlashflexGroup& group, std::int64_t layers, StageEnds ends) const;
  std::int64_t most_layers(const FlashflexGroup& group, StageEnds ends) const;

  // FLOPs of a step that the form's utilisation counts: with recomputation, the recomputed ones too.
  double step_flops(double sequences) const;
  double peak_flop_per_s(int device) const { return flop_per_s_[static_cast<std::size_t>(device)]; }

 private:
  static constexpr double pipeline_factor = 1.8, sync_factor = 1.1;

  double bandwidth(int from, int to) const {
    return bytes_per_s_[static_cast<std::size_t>(from) * flop_per_s_.size() + static_cast<std::size_t>(to)];
  }

  double layers_, hidden_, vocabulary_, sequence_, batch_;
  bool recompute_;
  double sync_factor_;
  std::vector<double> flop_per_s_, bytes_per_s_, memory_bytes_;
};

// All stages wait in every slot for the slowest that is active in it: the sum over slots u = 0 .. m + P - 2 of
// max { c_s : 0 <= u - s < m }.
double lockstep_s(std::span<const double> stages, std::int64_t micro_batches);
// Jobs that pass through the stages one after another without waiting for other stages: sum + (m - 1) max.
double flow_shop_s(std::span<const double> stages, std::int64_t micro_batches);

// The sets of ranks that sum up one slice of a layer each: the i-th entries of the groups, each padded to the largest
// by repeating its ranks.
std::vector<std::vector<int>> flashflex_sync_sets(std::span<const FlashflexGroup* const> owners);

// Throws an input error where a stage's strategies are not one tensor-parallel group.
TrainCost price_flashflex(const TrainPlan& plan, const CostOptions& options);

}  // namespace motley
