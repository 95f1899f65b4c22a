// The matrices of a `zero3` block in slices (`split` of the plan): a pass gathers one after the other from the
// data-parallel ranks, multiplies with it and drops it. Backwards its gradient is added up over the ranks before the
// next slice comes, so that neither weights nor gradients of a block are ever whole on one rank.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "motley/engine/ops/ops.hpp"
#include "motley/trainer/step/train_tensors.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

class WeightSlices {
 public:
  // Cuts `unit.sliced`, which passes use in this order, into slices of like size; each rank brings its part of every
  // slice. All outlive it.
  WeightSlices(const TrainUnit& unit, WorkerGroup& data_group, const ComputeDevice& device);

  // A block's operations (TrainOps) that take these matrices in slices.
  const Ops& ops() const { return *ops_; }
  // What the products of a pass exchange, on a rank that has no rows of the micro-batch.
  void forward_without_rows();
  void backward_without_rows();
  // At the end of a pass.
  void drop();

 private:
  class SlicedOps;
  struct Product;  // autograd's function
  struct Segment {
    TrainTensor* tensor = nullptr;
    Slice slice;             // of the tensor
    std::int64_t first = 0;  // element in the buffer
  };
  struct Part {
    std::vector<Segment> segments;           // by rank, of each in the order of the matrices
    std::vector<std::int64_t> bounds;        // elements of every rank
    std::size_t own_begin = 0, own_end = 0;  // segments of this rank
  };
  struct Uses {  // of one matrix
    const TrainTensor* tensor = nullptr;
    std::size_t begin = 0, end = 0;  // slices
  };

  void bring(std::size_t slice);
  at::Tensor multiply(const Uses& uses, const at::Tensor& input);
  at::Tensor multiply_back(const Uses& uses, const at::Tensor& input, const at::Tensor& gradient);

  WorkerGroup& group_;
  const ComputeDevice& device_;
  at::Tensor buffer_;  // of the host
  std::vector<Part> slices_;
  std::vector<Uses> uses_;
  std::unique_ptr<const Ops> ops_;
  std::size_t current_ = 0;         // where `weights_` is defined
  at::Tensor weights_, gradients_;  // of the current slice; gradients in fp32, where there are some
};

}  // namespace motley
