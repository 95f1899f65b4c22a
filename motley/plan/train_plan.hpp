// Training: the plan of kind "train". Replicas, each a pipeline of its own; stages, each a group of devices; for every
// range of a stage's layers, what is done with them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/cluster/profile.hpp"
#include "motley/model/model.hpp"
#include "motley/plan/shared.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

// What is divided among the data-parallel ranks of a stage: nothing; the optimizer's states; gradients too; weights
// too.
enum class Sharding { none, zero1, zero2, zero3 };
EnumNames<Sharding> names_of(Bound<Sharding>);

// What a range of a stage's layers does. Rank r of the stage's devices is tensor-parallel rank r % tp of the
// data-parallel rank r / tp.
struct LayerStrategy {
  LayerRange layers;
  std::int64_t tp = 1;
  std::int64_t dp = 1;
  Sharding shard = Sharding::none;
  bool recompute = false;  // only the input of a layer is kept; the backward pass computes the rest again
  std::int64_t split = 1;  // parts in which matrices of a `zero3` layer come and their gradients go, one by one
  bool operator==(const LayerStrategy&) const = default;
};

struct TrainStage {
  LayerRange layers;
  std::vector<std::string> devices;
  std::vector<double> shares = {};  // of the stage's work, by device; fractions that sum to 1; empty: equal
  std::vector<LayerStrategy> strategies;
  bool operator==(const TrainStage&) const = default;
};

struct TrainReplica {
  double share = 1;                // of the global batch; share x global batch is a whole number of sequences
  std::int64_t micro_batches = 1;  // per step; their sizes differ by at most one sequence
  std::vector<TrainStage> stages;  // first to last
  bool operator==(const TrainReplica&) const = default;
};

enum class PipelineSchedule {
  gpipe,                     // all forward passes, then all backward passes
  one_forward_one_backward,  // a stage keeps no more micro-batches than there are stages from it to the end
  zb_h1                      // the same, but gradients of weights wait, to be computed in pauses (arXiv 2401.10241)
};
EnumNames<PipelineSchedule> names_of(Bound<PipelineSchedule>);

// What a stage does with a micro-batch at a time.
enum class PassKind {
  forward,
  backward,  // gradients of its input and of its weights, or of its input alone where there are passes for the others
  weights    // gradients of its weights that have waited
};
EnumNames<PassKind> names_of(Bound<PassKind>);

// How replicas add up their gradients.
enum class SyncAlgorithm {
  ring,         // reduce-scatter and all-gather around a ring
  direct,       // every owner of a part receives it from all others and sends the sum back
  hierarchical  // the same, first inside each machine, then inside each site, then over all
};
EnumNames<SyncAlgorithm> names_of(Bound<SyncAlgorithm>);

struct GradientSync {
  SyncAlgorithm algorithm = SyncAlgorithm::ring;
  bool overlap = false;  // with the backward pass
  bool operator==(const GradientSync&) const = default;
};

struct TrainMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;    // moments and master copy
  std::int64_t activations = 0;  // kept for the backward pass, and the largest working set of a layer
  std::int64_t reserve = 0;
  std::int64_t limit = 0;
  std::int64_t total() const { return weights + gradients + optimizer + activations + reserve; }
  bool operator==(const TrainMemory&) const = default;
};

struct TrainPrediction {
  double iteration_s = 0;
  double tokens_per_s = 0;
  double mfu = 0;  // model FLOPs (no recomputation) per second, as a share of the peak of all devices that work
  std::optional<FigureRange> iteration_s_range;  // where device types rest on the measurements of others
  std::map<std::string, TrainMemory> memory_bytes;
  bool operator==(const TrainPrediction&) const = default;
};

struct TrainPlan {
  static constexpr PlanKind kind{"train", "motley plan train"};

  Model model;
  Cluster cluster;
  Workload workload;
  Profile profile;
  std::vector<TrainReplica> replicas;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  GradientSync sync;
  TrainPrediction predicted;
  std::vector<UnusedDevice> unused;
  SearchRecord search;

  bool operator==(const TrainPlan&) const = default;
};
Schema<TrainPlan> schema_of(Bound<TrainPlan>);

// The workload's training job; throws an input error where it has none.
const Training& training_of(const Workload& workload);

// Sequences of a step that a replica takes, rounded to whole ones.
std::int64_t replica_sequences(const Training& training, const TrainReplica& replica);
// Of its largest micro-batch.
std::int64_t micro_batch_sequences(const Training& training, const TrainReplica& replica);

// Bytes per parameter: what the workload says, or by precision, executor and optimizer: 2 + 2 + 4 of 16-bit weights,
// gradients and fp32 copy, 2 + 4 + 4 where motley trains in bf16 and adds gradients up in fp32, 4 + 4 in fp32; and 8 of
// Adam's moments, 4 of a momentum.
StateBytes state_bytes(const Training& training);

// Whether the gradients of a layer's weights are computed after the whole stage's input gradient, which then leaves
// sooner. What they are computed from takes the place of what the backward pass has read, as many bytes; where
// recomputation keeps inputs alone it would take more, and sharded gradients are added up block by block.
bool weights_wait(const Training& training, const LayerStrategy& strategy);

// A pipeline's stage as memory sees it.
struct StageFootprint {
  bool embedding = false;
  bool head = false;
  std::int64_t sequences = 1;  // of a micro-batch, over all data-parallel ranks
  std::int64_t in_flight = 1;  // micro-batches whose activations are held at once
  std::int64_t waiting = 0;    // and in addition those whose gradients of weights wait, where weights_wait()
};
// Bytes on each of tp x dp ranks, in their order, without reserve and limit; `shares` as in TrainStage. Throws an input
// error where the layers cannot be cut so.
std::vector<TrainMemory> train_memory(const Architecture& arch, const Training& training,
                                      const StageFootprint& footprint, const std::vector<LayerStrategy>& strategies,
                                      const std::vector<double>& shares = {});
// Micro-batches that stage `stage` of `stages` holds at once, from their forward passes to their backward passes.
std::int64_t micro_batches_in_flight(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                     std::int64_t micro_batches);
// By how many micro-batches the gradients of a stage's weights lag behind those of its input; 0: the backward pass
// computes both. With it every stage holds something of as many micro-batches as the first.
std::int64_t weight_lag(PipelineSchedule schedule, std::size_t stage);
// Micro-batches in addition to those in flight whose gradients of weights wait.
std::int64_t micro_batches_waiting(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                   std::int64_t micro_batches);
// Bytes on every device of a stage of a plan, in the order of its devices.
std::vector<TrainMemory> stage_memory(const TrainPlan& plan, const TrainReplica& replica, std::size_t stage);

// Checks a plan without knowing any planner or cost form. Empty: nothing wrong.
std::vector<Violation> verify(const TrainPlan& plan);

}  // namespace motley
