#include "motley/engine/stage/load_ahead.hpp"

#include <c10/core/InferenceMode.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <stop_token>

namespace motley {

namespace {

struct GivenUp {};

std::function<void(double)> until(const std::stop_token& stop) {
  return [stop](double) {
    if (stop.stop_requested()) throw GivenUp();
  };
}

void yield_to_steps() {
  constexpr int idle = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), idle);
}

}  // namespace

void LoadAhead::begin(const StageSpec& next, const std::filesystem::path& model, const ComputeDevice& device,
                      StageModel& current, std::function<void()> done) {
  settle(current);
  standby_ = false;
  auto part = StageModel::sharing(next, device, current);
  thread_ =
      std::jthread([this, model, part = std::move(part), done = std::move(done)](const std::stop_token& stop) mutable {
        yield_to_steps();
        try {
          const c10::InferenceMode guard;
          part->load(model, until(stop));
          loaded_ = std::move(part);
        } catch (...) {
          part.reset();
        }
        done();
      });
}

void LoadAhead::begin_standby(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
                              StageModel& current, std::function<void(std::int64_t bytes)> done) {
  settle(current);
  standby_ = true;
  auto part = StageModel::sharing(spec, device, current);
  thread_ = std::jthread(
      [this, model, &device, part = std::move(part), done = std::move(done)](const std::stop_token& stop) mutable {
        yield_to_steps();
        try {
          const c10::InferenceMode guard;
          part->load_standby(model, until(stop));
        } catch (...) {
          // What was read so far is as good: tensors are there as a whole or not at all, once this thread's work is
          // done. lives() waits for it and throws nothing.
          (void)device.lives();
        }
        loaded_ = std::move(part);
        done(loaded_->standby_bytes());
      });
}

void LoadAhead::end() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
}

void LoadAhead::end_into(StageModel& model) {
  end();
  if (loaded_) model.take_weights(*loaded_);
  loaded_.reset();
}

void LoadAhead::settle(StageModel& current) {
  end();
  if (standby_) end_into(current);
  loaded_.reset();
}

bool has_room_beside(const Assignment& now, const Assignment& next, std::int64_t memory_bytes) {
  const Stage &a = *now.stage, &b = *next.stage;
  if (a.offload || b.offload) return false;  // it would stream from two files at once
  const bool alike = now.degree == next.degree && now.rank == next.rank && a.shares == b.shares &&
                     a.expert_shares == b.expert_shares && a.weight_type == b.weight_type;
  std::int64_t both = 0;
  Stage on_device = a;  // copies in the host's memory come to the device, too
  std::erase_if(on_device.standby_weights,
                [](const StandbyWeights& copies) { return copies.tier == StandbyTier::host; });
  if (alike)
    for (const LayerRange& held : held_layers(on_device, b.layers)) both += held.size();
  const std::int64_t lacking =
      next.memory.weights * (b.layers.size() - both) / std::max<std::int64_t>(1, b.layers.size());
  return now.memory.total() + lacking <= memory_bytes;
}

}  // namespace motley
