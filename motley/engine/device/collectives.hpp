// Where the ranks of a stage meet.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/rank_sums.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// As a block of the model needs it.
class BlockRanks {
 public:
  virtual ~BlockRanks() = default;
  virtual int size() const = 0;
  // terms = their sum over the ranks, the same bits on each.
  virtual void sum(at::Tensor& terms) = 0;
  // `input` is the same on all ranks, and each continues with its own shard. Where gradients are wanted, they are
  // summed over the ranks on their way back through here.
  virtual void copy_to_ranks(at::Tensor& input) { (void)input; }
  // In place, `values` become those of rank 0: unlike devices round what they compute from the same bits, and each has
  // to choose the same. Gradients pass as if every rank had come to these values by itself.
  virtual void take_from_first(at::Tensor& values) = 0;
};

// Calls `use` with the bytes of contiguous values in the host's memory, and has what it makes of them in `values`.
// `buffer`: as ComputeDevice::host_space() takes it.
template <class Use>
void through_host(const ComputeDevice& device, const at::Tensor& values, at::Tensor& buffer, const Use& use) {
  const at::Tensor host = device.to_host(values, buffer);
  use(bytes_of(host));
  if (!host.is_same(values)) values.copy_(host);
}

// On tensors of a device: by its kernels where `sums` takes them, else by way of the host's memory.
class Collectives final : public BlockRanks {
 public:
  // Without a group: a single rank, and nothing to do.
  Collectives(WorkerGroup* group, const ComputeDevice& device, const RankSums* sums = nullptr)
      : group_(group), device_(device), sums_(sums) {}

  int size() const override { return group_ ? group_->size() : 1; }
  // Whether the host has no part in sums of up to `bytes`.
  bool on_device(std::int64_t bytes) const { return size() == 1 || (sums_ != nullptr && sums_->takes(bytes)); }
  // In place; `terms` is contiguous.
  void sum(at::Tensor& terms) override;
  void take_from_first(at::Tensor& values) override;
  // Rank r's `mine` [S, bounds[r+1] - bounds[r]], fp32, become columns [bounds[r], bounds[r+1]) of rank 0's `all` [S,
  // bounds.back()].
  void gather_columns(const at::Tensor& mine, at::Tensor all, const std::vector<std::int64_t>& bounds);

 private:
  WorkerGroup* group_;
  const ComputeDevice& device_;
  const RankSums* sums_;
  at::Tensor mine_, all_, theirs_;  // of the host
};

}  // namespace motley
