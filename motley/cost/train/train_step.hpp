// What the parts of a training step cost: the arithmetic of the form `motley` for training.
//
// One block on one tensor-parallel group, t tokens of one micro-batch, every token attending to half of the sequence:
//
//   forward    products + attention + element-wise operations + launches + 2 all-reduces
//   backward   2 x products + 2.5 x attention + their element-wise operations + 2 x launches + 2 all-reduces;
//              with recomputation a forward more
//
// each part at the share of peak that the device type reaches in it, the slowest rank counting; or what a profile
// measured for the type, degree and micro-batch. Sharded gradients are reduced in every micro-batch, sharded weights
// gathered in every pass, during the computation but for the share that the executor exposes.
// docs/concepts/train-cost.md has symbols, sources and what is left out.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/cost/train/pipeline.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// Paths between devices, looked up once per pair of machines.
class TrainLinks {
 public:
  // Both must outlive it.
  TrainLinks(const Cluster& cluster, const Profile& profile);

  // As Cluster::link().
  PathSpeed path(int from, int to) const;
  // Of rows between two stages.
  HopSpeed hop(int from, int to, double message_bytes) const;
  // Of a message, where the profile has it.
  std::optional<double> measured_bytes_per_s(int from, int to, double message_bytes) const;
  // The same, or else the path's.
  double bytes_per_s(int from, int to, double message_bytes) const;
  // Of one machine: they copy and add themselves what passes between them, and compute nothing meanwhile.
  bool between_processors(int from, int to) const;
  int machine_of(int device) const { return cluster_.devices[static_cast<std::size_t>(device)].machine; }
  const Cluster& cluster() const { return cluster_; }

 private:
  const Cluster& cluster_;
  const Profile& profile_;
  bool measured_;
  std::vector<PathSpeed> paths_;  // machines x machines; empty where every pair of devices has its own; 0 bytes/s: none
};

// Bytes that links carry at the same time: all paths from one machine to another share one link in that direction;
// inside a machine every pair of devices has its own.
class LinkLoads {
 public:
  explicit LinkLoads(const TrainLinks& links) : links_(links) {}

  void add(int from, int to, double bytes, double message_bytes);
  // Every member sends `bytes` to the next one, the last to the first.
  void add_ring(const std::vector<int>& members, double bytes, double message_bytes);

  double seconds() const { return most_s_; }  // of the busiest link
  std::string busiest() const;
  // Whether it is between processors of one machine.
  bool busiest_is_of_processors() const;

 private:
  const TrainLinks& links_;
  std::vector<double> between_s_;              // machines x machines
  std::vector<std::vector<double>> inside_s_;  // of a machine: its devices x its devices
  double most_s_ = 0;
  int most_from_ = -1, most_to_ = -1;  // devices on the busiest link
};

// Bytes that each of a ring's members sends where they divide `bytes`, or gather them: all but its own part.
inline double shared_out_bytes(const std::vector<int>& ring, double bytes) {
  const auto ranks = static_cast<double>(ring.size());
  return bytes * (ranks - 1) / ranks;
}

// Seconds of one block in one micro-batch.
struct BlockPass {
  double forward_s = 0, backward_s = 0;
  double weights_s = 0;  // of backward_s: gradients of weights that can wait until the input's has been sent
};
// What computing is made of: parts that run one after the other.
struct ComputeParts {
  double products_s = 0;     // matrix products
  double attention_s = 0;    // scores and weighted values
  double elementwise_s = 0;  // norms, residual sums, activations, the loss
  double launches_s = 0;     // what the executor adds per layer and pass
  double measured_s = 0;     // a profile's time, instead of all others
  double sum() const { return products_s + attention_s + elementwise_s + launches_s + measured_s; }
  ComputeParts operator+(const ComputeParts& o) const;
  ComputeParts operator*(double factor) const;
};
struct PassParts {
  ComputeParts forward, backward;
  double sum() const { return forward.sum() + backward.sum(); }
};
// Their parts, for people; `gather_s` and `reduce_s` are what does not hide behind the rest.
struct BlockParts {
  ComputeParts compute;    // forward and backward
  ComputeParts recompute;  // the forward pass again
  double tensor_s = 0;     // all-reduces inside the tensor-parallel group
  double gather_s = 0;     // sharded weights
  double reduce_s = 0;     // sharded gradients
  BlockParts operator+(const BlockParts& o) const;
  BlockParts operator*(double factor) const;
};

// What a device takes at least for one sequence, there and back, whatever it shares with others.
struct SequenceTime {
  double block_s = 0, head_s = 0;    // of a block: on average
  std::vector<double> kinds_s = {};  // of one of each kind of layer
};

struct StageWork {
  std::vector<int> devices;  // rank r is tensor-parallel rank r % tp of data-parallel rank r / tp
  std::vector<double> shares;
  std::int64_t sequences = 1;  // of a micro-batch, over all data-parallel ranks
};

class TrainStepCost {
 public:
  // All must outlive it. Throws an input error where a device type has no FLOP/s of the job's precision.
  TrainStepCost(const CostOptions& options, const Cluster& cluster, const Architecture& arch, const Training& training,
                const Profile& profile);

  // Of this kind of layer.
  BlockPass block(const StageWork& work, const LayerStrategy& strategy, BlockParts* parts = nullptr,
                  std::size_t kind = 0) const;
  // The lookup of a micro-batch's tokens, where a profile measured it, and what its sharded table adds.
  BlockPass embedding(const StageWork& work, const LayerStrategy& strategy) const;
  // Logits, their loss, and back.
  BlockPass head(const StageWork& work, const LayerStrategy& strategy, ComputeParts* parts = nullptr) const;
  // Of a device alone: its products, attention and element-wise operations. Nothing that a profile says.
  SequenceTime sequence_time(int device) const {
    return sequence_times_[static_cast<std::size_t>(cluster_.devices[static_cast<std::size_t>(device)].type)];
  }
  // Of a rank's parameters in this many blocks of a kind, or in an end of the model: what a profile has, or all states
  // read and written.
  double update_s(const StageWork& work, const LayerStrategy& strategy, double blocks, std::size_t kind = 0) const;
  double update_s(const StageWork& work, const LayerStrategy& strategy, LayerPart end) const;
  // Of a micro-batch's hidden states between the fastest pair of devices, in one direction. All paths from one machine
  // to another share a link.
  PipelineHop hop(const std::vector<int>& from, const std::vector<int>& to, std::int64_t sequences) const;

  // Of the slowest device, for `bytes` that the executor reads and writes in addition to an exchange of sharded
  // tensors; 0 for one that does not.
  double copies_s(const std::vector<int>& devices, double bytes) const;

  HopMode hops() const { return hops_; }
  // Whether sharded weights of embedding and head are gathered for every pass, as those of blocks are, or once per
  // step.
  bool ends_in_passes() const { return training_.executor == Executor::motley; }
  // Once per step and boundary between stages.
  double boundary_overhead_s() const { return boundary_overhead_s_; }

  // FLOPs of the model in one step, without recomputation: three times the forward pass.
  double step_flops() const;
  // FLOPs of a layer of this kind, as a share of those of the model's mean layer.
  double flops_of_mean(std::size_t kind) const;
  double peak_flop_per_s(int device) const;
  double block_bytes(std::size_t kind, double bytes_per_parameter) const;  // of a whole block's parameters
  DType type() const { return type_; }
  const Architecture& arch() const { return arch_; }
  const TrainLinks& links() const { return links_; }

 private:
  const TensorGroup& group(const StageWork& work, const LayerStrategy& strategy, std::int64_t data_rank) const;
  std::int64_t sequences(const StageWork& work, const LayerStrategy& strategy, std::int64_t data_rank) const;
  PassParts block_parts(const TensorGroup& group, std::size_t rank, std::size_t kind, double tokens) const;
  PassParts head_parts(const TensorGroup& group, std::size_t rank, double tokens) const;
  double launch_s(const TensorGroup& group) const;
  double rank_flops(const Rank& rank) const;
  std::optional<LayerTime> measured(int device, std::int64_t degree, std::int64_t sequences, LayerPart part) const;
  std::optional<LayerTime> measured(const TensorGroup& group, std::int64_t sequences, LayerPart part) const;
  // A profile's blocks are those of the model on average: one of a kind takes its part by its FLOPs.
  double part_of_measured(const TensorGroup& group, std::size_t kind) const;
  // Whether the group's degree was measured, with what its ranks exchange in a pass.
  bool measured_together(const TensorGroup& group, LayerPart part) const;
  double parameters(LayerPart end) const;
  double sharded_end_s(const StageWork& work, const LayerStrategy& strategy, LayerPart end, Sharding from,
                       double bytes_per_parameter) const;
  double update_s(const StageWork& work, const LayerStrategy& strategy, LayerPart part, std::size_t kind,
                  double count) const;
  double over_data_ranks_s(const StageWork& work, const LayerStrategy& strategy, double bytes,
                           std::int64_t pieces) const;

  const Cluster& cluster_;
  const Architecture& arch_;
  const Training& training_;
  const Profile& profile_;
  TrainLinks links_;
  StepCost step_;
  std::vector<std::int64_t> layer_of_kinds_;
  DType type_;
  StateBytes states_;
  std::vector<double> block_parameters_, block_flops_;  // by kind of layer
  double blocks_flops_;                                 // of all layers
  double element_bytes_;
  HopMode hops_;
  double boundary_overhead_s_;
  std::optional<double> launch_s_;            // of a block's forward pass; none: that of the device types
  double exposed_;                            // share of what is gathered and reduced that does not hide
  bool copies_;                               // whether sharded tensors are copied on the way
  std::vector<SequenceTime> sequence_times_;  // by type
  // Groups that look alike are made once: by types, shares and the slowest link between them.
  mutable std::mutex mutex_;
  mutable std::map<std::vector<double>, TensorGroup> groups_;
};

}  // namespace motley
