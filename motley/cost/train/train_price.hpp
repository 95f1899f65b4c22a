// A whole training step in the form `motley`: pipelines event by event, then what replicas add up, then the update.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/train_form.hpp"
#include "motley/cost/train/train_step.hpp"

namespace motley {

// A stage with its devices as numbers, as a planner has them before there is a plan.
struct PlacedStage {
  LayerRange layers;
  std::vector<int> devices;
  std::vector<double> shares = {};
  std::vector<LayerStrategy> strategies;
  bool operator==(const PlacedStage&) const = default;
};
struct ReplicaLayout {
  std::int64_t sequences = 0;  // of a step
  std::int64_t micro_batches = 1;
  std::vector<PlacedStage> stages;
  bool operator==(const ReplicaLayout&) const = default;
};
struct TrainLayout {
  std::vector<ReplicaLayout> replicas;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  GradientSync sync;
};
TrainLayout layout_of(const TrainPlan& plan);
// Sequences of the replica's largest micro-batch.
std::int64_t micro_batch_of(const ReplicaLayout& replica);

struct StageParts {
  BlockParts blocks;  // of all the stage's blocks and one micro-batch
  ComputeParts head;
};
// Of stage `stage`; both of its ends included.
PipelineStage pipeline_stage(const TrainStepCost& cost, const ReplicaLayout& replica, std::size_t stage,
                             StageParts* parts = nullptr);

struct TrainProblemView {
  const Cluster& cluster;
  const Architecture& arch;
  const Training& training;
  const Profile& profile;
};

// What all owners of a layer, in whatever replicas and degrees, exchange once per step. The parameters are cut at every
// boundary that any owner has; each piece is added up by those who hold it. All pieces travel at once.
struct GradientExchange {
  double seconds = 0;   // the busiest link's, and the latencies of the device with most of them
  double gather_s = 0;  // the same of new weights where states are sharded: after the update, hidden by nothing
  std::string busiest_link;
  bool by_processors = false;  // that link is between processors of one machine, which copy and add what passes it
};
GradientExchange gradient_exchange(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout);

// A part of every parameter of a layer, cut as tensor parallelism cuts it, and all devices whose gradients of it are
// added up.
struct GradientPiece {
  double from = 0, to = 1;
  std::vector<int> members;
};
std::vector<GradientPiece> gradient_pieces(const TrainLayout& layout, std::int64_t layer);

struct TrainStepPrice {
  double iteration_s = 0;
  std::vector<PipelineLoad> loads;       // by replica
  std::vector<PipelineTimes> pipelines;  // by replica
  double exchange_s = 0;                 // what no backward pass hides
  double update_s = 0;                   // and gathering new weights
  GradientExchange exchange;
};
// `passes`, where given, receives what every stage does when.
TrainStepPrice price_step(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout,
                          std::vector<PipelinePass>* passes = nullptr);

// The same of a plan.
TrainStepPrice price_step(const TrainPlan& plan, const CostOptions& options,
                          std::vector<PipelinePass>* passes = nullptr);

// Its two halves: all but the pipelines, with an `iteration_s` below which no step of this layout can be; and what
// takes most of the time, running them.
TrainStepPrice bound_step(const TrainStepCost& cost, const TrainProblemView& view, const TrainLayout& layout);
void run_step(const TrainStepCost& cost, const TrainLayout& layout, TrainStepPrice& price,
              std::vector<PipelinePass>* passes = nullptr);

TrainCost price_motley_train(const TrainPlan& plan, const CostOptions& options);

}  // namespace motley
