// Forward and backward passes of one worker's stage, micro-batch by micro-batch.
//
// A pass keeps of each block its input and what autograd keeps behind it, or with recomputation the input alone. The
// head computes loss and gradient of a micro-batch at once, in its forward pass: the gradient of a sum of losses needs
// nothing that comes later, and logits are held for one micro-batch.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/engine/ops/rotary_frequencies.hpp"
#include "motley/trainer/step/late_gradients.hpp"
#include "motley/trainer/step/row_exchange.hpp"
#include "motley/trainer/step/train_ops.hpp"
#include "motley/trainer/step/train_ranks.hpp"
#include "motley/trainer/step/train_tensors.hpp"
#include "motley/trainer/step/weight_slices.hpp"

namespace motley {

class StageRunner {
 public:
  // All outlive it.
  StageRunner(const TrainPlan& plan, const std::string& device, TrainTensors& tensors,
              const TrainConnections& connections, ActivityLog& activity, const ComputeDevice& compute);

  // The sequences of this worker's replica in the coming step, as TrainStep has them.
  void begin(std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets, std::int64_t sequences,
             std::int64_t micro_batches, bool training);
  // Adds the losses of the micro-batch's tokens to loss() at the end of the model.
  void forward(std::int64_t micro_batch);
  // Told of each unit of the last of the step's micro-batches, once its gradients are complete.
  using Finished = std::function<void(std::int64_t layer)>;
  // Adds to the gradients of the tensors; behind the first stage those of weights that can wait (weights_wait()) come
  // after the gradient of the stage's input, which has been sent by then: at once, or where the plan's schedule has a
  // weight_lag(), in weight_gradients().
  void backward(std::int64_t micro_batch, const Finished& finished = {});
  // Of a micro-batch that backward() has had; in the order of the micro-batches, so that sums are the same bit for bit.
  void weight_gradients(std::int64_t micro_batch, const Finished& finished = {});

  // Sum over the tokens that this worker counts: one rank of each tensor-parallel group does.
  double loss() const { return loss_; }
  // When the newest pass had its input.
  Instant input_arrived() const { return input_arrived_; }

 private:
  struct Range;
  struct BlockRecord {  // what a backward pass needs of one block
    at::Tensor input, output;
  };
  struct Unfinished {  // a unit of which gradients are still to be added up
    const Range* range = nullptr;
    TrainUnit* unit = nullptr;
    std::vector<LateGradients::Product> products;
  };
  struct Range {  // of layers with one strategy
    StrategyRanks ranks;
    std::vector<TrainUnit>* units = nullptr;
    std::int64_t dp_rank = 0;
    int tp_rank = 0;
    WorkerGroup* tensor_group = nullptr;
    WorkerGroup* data_group = nullptr;
    std::unique_ptr<TrainRanks> tensor_ranks;
    std::map<std::int64_t, std::unique_ptr<WeightSlices>> slices;  // by layer, where weights come in slices
    std::map<std::int64_t, std::vector<BlockRecord>> records;      // by micro-batch
    std::map<std::int64_t, at::Tensor> looked_up;                  // rows of the embedding, and what follows from them
    std::map<std::int64_t, at::Tensor> embedded;
    std::map<std::int64_t, at::Tensor> head_gradients;
  };

  Span rows_of(const Range& range, std::int64_t micro_batch) const;  // of the micro-batch's tokens
  std::int64_t sequences_of(std::int64_t micro_batch) const;
  at::Tensor tokens_of(const std::vector<std::int32_t>& of, const Range& range, std::int64_t micro_batch) const;
  at::Tensor positions_of(std::int64_t rows) const;  // whole sequences
  at::Tensor take_rows(const StrategyRanks& from, Range& to, std::int64_t micro_batch);
  void send_rows(const Range& from, const StrategyRanks& to, std::int64_t micro_batch, const at::Tensor& rows);

  at::Tensor embed(Range& range, TrainUnit& unit, std::int64_t micro_batch);
  void embed_backward(Range& range, TrainUnit& unit, std::int64_t micro_batch, const at::Tensor& gradient);
  // Whether the gradients of the unit's matrices come after the stage's backward pass.
  bool is_late(const TrainUnit& unit) const;
  void finish(std::vector<Unfinished> units, std::int64_t micro_batch, const Finished& finished);
  at::Tensor run(Range& range, TrainUnit& unit, const at::Tensor& hidden);
  void head(Range& range, TrainUnit& unit, std::int64_t micro_batch, const at::Tensor& hidden);
  at::Tensor block_backward(Range& range, TrainUnit& unit, BlockRecord& record, const at::Tensor& gradient);

  void gather_weights(const Range& range, TrainUnit& unit);
  void drop_weights(const Range& range, TrainUnit& unit) const;
  void settle(const Range& range, TrainUnit& unit);

  const Architecture& arch_;
  const Training& training_;
  const ComputeDevice& compute_;
  at::ScalarType type_;
  TrainOps ops_;
  std::vector<RotaryFrequencies> frequencies_;
  std::vector<Range> ranges_;              // of the worker's stage
  std::vector<StrategyRanks> strategies_;  // of its replica
  std::size_t first_strategy_ = 0;         // of its stage, among them
  RowExchange rows_;
  at::Tensor buffer_;  // of the host
  ActivityLog& activity_;
  LateGradients late_;
  bool lags_ = false;                                        // gradients of weights wait for weight_gradients()
  std::map<std::int64_t, std::vector<Unfinished>> waiting_;  // by micro-batch

  bool training_step_ = true;
  std::vector<std::int32_t> inputs_, targets_;
  std::vector<std::int64_t> micro_batch_bounds_;
  double loss_ = 0;
  Instant input_arrived_;
};

// The data-parallel ranks' parts of a unit's whole tensors, in the run's type, put together: into the weights of each.
// `buffer`: as through_host() takes it.
void gather_parts(const TrainUnit& unit, WorkerGroup& data_group, const ComputeDevice& compute, at::Tensor& buffer);

}  // namespace motley
