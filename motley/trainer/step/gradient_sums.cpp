#include "motley/trainer/step/gradient_sums.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "motley/engine/device/collectives.hpp"

namespace motley {
namespace {

constexpr std::int64_t nothing_finished = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t all_finished = -1;

}  // namespace

GradientSums::GradientSums(const TrainPlan& plan, int worker, const TrainTensors& tensors,
                           const TrainConnections& connections, ActivityLog& activity, const ComputeDevice& on)
    : activity_(activity), device_(on), finished_(nothing_finished) {
  const std::string device = train_devices(plan).at(static_cast<std::size_t>(worker));
  for (const GradientBucket& bucket : gradient_buckets(plan)) {
    if (std::ranges::find(bucket.workers, worker) == bucket.workers.end()) continue;
    Bucket own{.group = connections.group(GroupKind::gradients, bucket.workers),
               .layer = bucket.layer,
               .elements = bucket.elements,
               .own = {}};
    bool sums = own.group != nullptr;
    std::int64_t first = 0;
    for (const GradientSlice& part : bucket.parts) {
      const std::vector<TrainTensor*> holders = tensors.holders(part.tensor.name, part.slice);
      std::size_t held = 0;
      for (const GradientHolder& holder : part.holders) {
        if (holder.device != device) continue;
        const TrainTensor& tensor = *holders.at(held++);
        own.own.push_back({part_of(tensor.gradient, tensor.gradient_slice, part.slice), holder.weight, first});
      }
      sums = sums || held > 1;
      first += part.slice.elements();
    }
    if (sums) buckets_.push_back(std::move(own));
  }
  thread_ = std::jthread([this] { run(); });
}

GradientSums::~GradientSums() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void GradientSums::finished(std::int64_t layer) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = layer;
    made_ = moment_on(device_);
  }
  changed_.notify_all();
}

void GradientSums::finish() {
  std::unique_lock lock(mutex_);
  finished_ = all_finished;
  made_ = moment_on(device_);
  changed_.notify_all();
  for (; !failure_ && done_ < buckets_.size(); changed_.wait(lock)) activity_.set(Doing::meeting);
  activity_.set(Doing::computing);
  if (failure_) std::rethrow_exception(failure_);
  come_after(added_, device_);
  done_ = 0;
  finished_ = nothing_finished;
}

void GradientSums::run() {
  at::set_num_threads(1);  // while passes run
  const at::NoGradGuard values_alone;
  at::Tensor buffer, host;
  for (;;) {
    const Bucket* bucket = nullptr;
    StreamMoment made, added;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || (done_ < buckets_.size() && buckets_[done_].layer >= finished_); });
      if (closed_) return;
      bucket = &buckets_[done_];
      made = made_;
    }
    try {
      come_after(made, device_);
      exchange(*bucket, buffer, host);
      added = moment_on(device_);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      added_ = std::move(added);
      ++done_;
    }
    changed_.notify_all();
  }
}

void GradientSums::exchange(const Bucket& bucket, at::Tensor& buffer, at::Tensor& host) const {
  if (!buffer.defined() || buffer.numel() < bucket.elements)
    buffer = at::empty({bucket.elements}, device_.options(at::kFloat));
  const at::Tensor sum = buffer.narrow(0, 0, bucket.elements);
  const auto place = [&](const Contribution& own) {
    return sum.narrow(0, own.first, own.view.numel()).view(own.view.sizes());
  };
  std::int64_t filled = -1;  // of a part that this worker holds twice, the second is added
  for (const Contribution& own : bucket.own) {
    at::Tensor to = place(own);
    if (own.first == filled)
      to.add_(own.view, own.weight);
    else if (own.weight == 1)
      to.copy_(own.view);
    else
      at::mul_out(to, own.view, at::scalar_tensor(own.weight, device_.options(at::kFloat)));
    filled = own.first;
  }
  if (bucket.group != nullptr)
    through_host(device_, sum, host, [&](auto bytes) { bucket.group->all_reduce(bytes, CollectiveElement::fp32); });
  for (const Contribution& own : bucket.own) {
    at::Tensor to = own.view;
    to.copy_(place(own));
  }
}

}  // namespace motley
