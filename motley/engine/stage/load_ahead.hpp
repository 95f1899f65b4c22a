// Weights that are read during the steps of the plan that is served: for another plan, or to stand by.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "motley/engine/stage/assignment.hpp"
#include "motley/engine/stage/stage_model.hpp"

namespace motley {

// By a thread that gets little of the processor while others want it. Of one thread.
class LoadAhead {
 public:
  ~LoadAhead() { end(); }

  // What of the next part is not among the tensors of `current`, whose caches and buffers stay out of it. `done` is
  // called in any case, from the thread or at once: what cannot be read will say why when it is needed. Weights that
  // stand by go to `current`; what was read for another plan is given up.
  void begin(const StageSpec& next, const std::filesystem::path& model, const ComputeDevice& device,
             StageModel& current, std::function<void()> done);
  // The weights that `spec` has `current` hold in addition to its own part; `done` is told how much is held of them.
  void begin_standby(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
                     StageModel& current, std::function<void(std::int64_t bytes)> done);
  // Adds what was read so far to a model that is to be the `earlier` of another: weights that stand by, or all that was
  // wanted for another plan.
  void end_into(StageModel& model);

 private:
  void end();
  void settle(StageModel& current);

  std::jthread thread_;
  std::unique_ptr<StageModel> loaded_;  // the thread's until it has ended
  bool standby_ = false;                // what it is
};

// Whether a device has room for what a next part needs of weights with all of its present one, whose layers' weights
// both share where they are cut alike.
bool has_room_beside(const Assignment& now, const Assignment& next, std::int64_t memory_bytes);

}  // namespace motley
