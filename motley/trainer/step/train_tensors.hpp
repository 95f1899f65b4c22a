// The tensors of a model as one worker trains them: its slices, and of these the gradients and the optimizer's states
// that it has.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "motley/engine/stage/block.hpp"
#include "motley/trainer/layout/state_files.hpp"
#include "motley/trainer/layout/worker_layout.hpp"

namespace motley {

struct TrainTensor {
  TensorSpec spec;
  Slice slice;            // of the whole tensor: what passes compute with
  Slice gradient_slice;   // of that, whose gradient is kept: all, or with zero2 and zero3 the data-parallel rank's part
  Slice state_slice;      // whose states are here: with zero1, too, its part alone
  bool gathered = false;  // only passes have the weight's values: all units that use it are zero3

  at::Tensor weight;    // in the run's type, of `slice`, a leaf of autograd; of a gathered one values come and go
  at::Tensor kept;      // of `state_slice`: a view of the weight, or of a gathered one a tensor of its own
  at::Tensor gradient;  // fp32, of `gradient_slice`: the sum of a step's token losses, differentiated
  at::Tensor pending;   // fp32, of `slice`: what is still to be divided among the data-parallel ranks
  at::Tensor master;    // fp32, of `state_slice`, where the run's type is another
  at::Tensor exp_avg, exp_avg_sq;  // fp32, of `state_slice`; undefined where the optimizer has none

  const at::Tensor& updated() const { return master.defined() ? master : kept; }
  const at::Tensor& state(StateKind kind) const;
  // The memory of a gathered weight's values, which autograd's records keep naming: none between passes.
  void allocate_weight() const;
  void free_weight() const;
  bool is_divided() const { return gradient_slice != slice; }
  // Where gradients of `slice` are added to.
  at::Tensor& accumulator();
  // The same of values that nothing else changes later.
  void add_gradient(const at::Tensor& values);
};

// Tensors that are used together: the embedding (layer -1), a block, or the head (layer arch.layers).
struct TrainUnit {
  std::int64_t layer = 0;
  StrategyRanks ranks;
  Sharding shard = Sharding::none;  // none where there is one data-parallel rank
  std::int64_t dp_rank = 0;
  std::map<std::string, std::shared_ptr<TrainTensor>> tensors;  // by role
  std::vector<std::shared_ptr<TrainTensor>> whole;              // of these, whose weights are there whole during a pass
  std::vector<std::shared_ptr<TrainTensor>> sliced;  // and those that come in slices (`split`), in the order of use
  bool recompute = false;

  const TrainTensor& at(const std::string& role) const { return *tensors.at(role); }
};

struct TrainBytes {
  std::int64_t weights = 0, gradients = 0, optimizer = 0;
};

class TrainTensors {
 public:
  // Reads the worker's parts from a model folder, and where `updates` is not 0 the states of the optimizer with them.
  // Throws an input error where the files do not hold what the plan promises.
  TrainTensors(const TrainPlan& plan, const std::string& device, const ComputeDevice& compute,
               const std::filesystem::path& folder, std::int64_t updates,
               const std::function<void(double)>& progress = {});

  // Of one strategy of the worker's stage: embedding, blocks, head, as far as it has them.
  std::vector<TrainUnit>& units(std::size_t strategy) { return units_.at(strategy); }
  // Every tensor once.
  const std::vector<std::shared_ptr<TrainTensor>>& all() const { return all_; }
  // Those that hold this part of a tensor's gradient: two where a tied table is cut in two ways.
  std::vector<TrainTensor*> holders(const std::string& name, const Slice& part) const;
  TrainBytes bytes() const;

 private:
  void add(const TrainPlan& plan, TrainUnit& unit, const std::vector<TensorSpec>& specs, std::int64_t tp_rank);
  void load(const TrainPlan& plan, const ComputeDevice& compute, const std::filesystem::path& folder,
            std::int64_t updates, const std::function<void(double)>& progress);

  std::vector<std::vector<TrainUnit>> units_;
  std::vector<std::shared_ptr<TrainTensor>> all_;
};

// The part `slice` of a tensor that is `of`; both as slices of the same whole.
at::Tensor part_of(const at::Tensor& tensor, const Slice& of, const Slice& slice);
bool contains(const Slice& whole, const Slice& part);
// A data-parallel rank's part, as gradient_slices() cuts it.
Slice data_part(const TensorSpec& spec, const Slice& slice, std::int64_t rank, std::int64_t ranks);

}  // namespace motley
