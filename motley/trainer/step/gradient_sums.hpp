// The sum of gradients over all who hold the same parts, bucket by bucket, during the backward passes that still run.
#pragma once

#include <ATen/ATen.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "motley/engine/device/stream_order.hpp"
#include "motley/trainer/layout/connections.hpp"
#include "motley/trainer/step/train_tensors.hpp"

namespace motley {

class GradientSums {
 public:
  // All outlive it.
  GradientSums(const TrainPlan& plan, int worker, const TrainTensors& tensors, const TrainConnections& connections,
               ActivityLog& activity, const ComputeDevice& device);
  ~GradientSums();

  // The layer's gradients are this worker's whole: what they complete may be exchanged. Layers come from the last on.
  void finished(std::int64_t layer);
  // Everything may be; returns when it is. Throws what the exchange threw.
  void finish();

 private:
  struct Contribution {
    at::Tensor view;
    double weight = 1;
    std::int64_t first = 0;  // in the bucket
  };
  struct Bucket {
    WorkerGroup* group = nullptr;
    std::int64_t layer = 0, elements = 0;
    std::vector<Contribution> own;
  };

  void run();
  void exchange(const Bucket& bucket, at::Tensor& buffer, at::Tensor& host) const;

  ActivityLog& activity_;
  const ComputeDevice& device_;
  std::vector<Bucket> buckets_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t finished_ = 0;  // the lowest layer that is
  StreamMoment made_;          // its gradients, and those before
  std::size_t done_ = 0;       // buckets of this step
  StreamMoment added_;         // their sums
  bool closed_ = false;
  std::exception_ptr failure_;
  std::jthread thread_;
};

}  // namespace motley
