// The ranks of a tensor-parallel group in training: sums forwards where their parts of a product are added up, and
// backwards where their common input came from.
#pragma once

#include <ATen/ATen.h>

#include "motley/engine/stage/block.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

class TrainRanks final : public BlockRanks {
 public:
  // Without a group: a single rank.
  TrainRanks(WorkerGroup* group, const ComputeDevice& device) : group_(group), device_(device) {}

  bool is_first() const { return group_ == nullptr || group_->rank() == 0; }
  int size() const override { return group_ != nullptr ? group_->size() : 1; }
  void sum(at::Tensor& terms) override;
  void copy_to_ranks(at::Tensor& input) override;
  void take_from_first(at::Tensor& values) override;
  // In place, without a history.
  void sum_values(at::Tensor& terms);
  // `own` [rows, n] of every rank, one behind the other: [ranks, rows, n].
  at::Tensor gather(const at::Tensor& own);

 private:
  WorkerGroup* group_;
  const ComputeDevice& device_;
  at::Tensor buffer_;  // of the host
};

}  // namespace motley
