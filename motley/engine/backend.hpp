// Devices: opening them, and moving bytes between them and the host's collectives.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <string>

#include "motley/engine/block.hpp"
#include "motley/engine/scalar_type.hpp"
#include "motley/model/model.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

// "cpu", or "cuda:N": then CUDA's libraries are opened, before anything asks whether there are any, and this thread's
// work on the device goes to a stream of its own from now on. Throws an input error for another name, and an
// environment error where the libraries, the driver or the device are missing.
at::Device open_backend(const std::string& name);

// What products run on there: a processor's set of kernels, "cuda", or "aten" (LibTorch's own operations).
std::string kernels_name(at::Device device);

// What kernels are put on: a GPU's stream of this thread (a cudaStream_t); null for the processor.
void* native_stream(at::Device device);

// Return when all that was asked of the device is done, or all that this thread asked for. At once for the processor.
void synchronize(at::Device device);
void wait_for_stream(at::Device device);

// The values in the host's memory, in `buffer`: bytes, pinned, allocated where there are too few.
at::Tensor host_copy(const at::Tensor& values, at::Tensor& buffer);

// Of a contiguous tensor in the host's memory.
std::span<std::byte> bytes_of(const at::Tensor& host);

// The collectives of a stage's ranks on tensors. They take the host's memory: tensors of another device pass through a
// pinned buffer, allocated at the first use.
class Collectives final : public BlockRanks {
 public:
  explicit Collectives(WorkerGroup* group) : group_(group) {}  // null: a single rank, and nothing to do

  int size() const override { return group_ ? group_->size() : 1; }
  // In place; `terms` is contiguous.
  void sum(at::Tensor& terms) override;
  // Rank r's `mine` [S, bounds[r+1] - bounds[r]], fp32, become columns [bounds[r], bounds[r+1]) of rank 0's `all` [S,
  // bounds.back()].
  void gather_columns(const at::Tensor& mine, at::Tensor all, const std::vector<std::int64_t>& bounds);

 private:
  WorkerGroup* group_;
  at::Tensor mine_, all_;  // pinned
};

}  // namespace motley
