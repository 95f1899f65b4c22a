// Weights for another plan, read beside the steps of the one that is served.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "motley/engine/assignment.hpp"
#include "motley/engine/stage_model.hpp"

namespace motley {

// By a thread that gets little of the processor while others want it. Of one thread.
class LoadAhead {
 public:
  ~LoadAhead() { end(); }

  // What of the next part is not among the tensors of `current`, whose caches and buffers stay out of it. `done` is
  // called in any case, from the thread or at once: what cannot be read will say why when it is needed.
  void begin(const StageSpec& next, const std::filesystem::path& model, at::Device device, const StageModel& current,
             std::function<void()> done);
  // Adds what was read so far as a whole to a model that is to be the `earlier` of another; otherwise it is given up.
  void end_into(StageModel& model);

 private:
  void end();

  std::jthread thread_;
  std::unique_ptr<StageModel> loaded_;  // the thread's until it has ended
};

// Whether a device has room for what a next part needs of weights beside all of its present one, whose layers' weights
// both share where they are cut alike.
bool has_room_beside(const Assignment& now, const Assignment& next, std::int64_t memory_bytes);

}  // namespace motley
