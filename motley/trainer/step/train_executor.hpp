// One worker's part of a training run: a step from its tokens to the new weights, and the files of its state.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/trainer/layout/connections.hpp"
#include "motley/trainer/layout/train_messages.hpp"
#include "motley/trainer/step/gradient_sums.hpp"
#include "motley/trainer/step/stage_runner.hpp"
#include "motley/trainer/step/train_tensors.hpp"

namespace motley {

// A part of one of the tensors of a checkpoint.
struct SavedSlice {
  std::string name;  // state_name()
  Slice slice;
  at::Tensor values;  // contiguous, of the host
};
// Into files that are there (checkpoint_folder.hpp); returns when the disk has them. During steps it takes no more than
// half of a processor, so that steps keep theirs where a quota leaves little more than one.
enum class WritingPace { full, half_a_processor };
void write_parts(const std::filesystem::path& folder, const StateFiles& files, const std::vector<SavedSlice>& parts,
                 WritingPace pace);

class TrainExecutor {
 public:
  // Connects with the others and loads its part. Throws GroupBroken, or an input error. `activity` outlives it.
  TrainExecutor(TrainPlan plan, const TrainLaunch& launch, const CallDriver& self, const ComputeDevice& compute,
                Fabric& fabric, const std::function<void(double)>& progress, ActivityLog& activity);

  StateFiles state_files() const { return motley::state_files(plan_.model.arch, training_); }
  TrainBytes bytes() const { return tensors_.bytes(); }
  // Nothing has changed where it throws before the update, which is the last thing that it does.
  TrainStepDone execute(const TrainStep& step);
  // The parts of the state that are this worker's to write: copies, or valid until the next step.
  enum class Copies { none, all };
  std::vector<SavedSlice> saved_parts(Copies copies) const;

 private:
  struct Figures {
    double loss = 0, squares = 0;
  };
  void check(const TrainStep& step) const;
  std::vector<TrainPass> run_passes(const TrainStep& step, Instant start);
  Figures sum_figures(bool with_gradients);
  void update(double learning_rate, double divisor);
  void zero_gradients();

  const TrainPlan plan_;
  const Training& training_;
  const std::string device_;
  const TrainPlace place_;
  const int worker_;
  const ComputeDevice& compute_;
  ActivityLog& activity_;
  TrainConnections connections_;
  TrainTensors tensors_;
  StageRunner runner_;
  GradientSums sums_;
  WorkerGroup* all_;
  at::Tensor buffer_;  // of the host
  struct OwnSlice {
    StateSlice part;
    const TrainTensor* tensor;
  };
  std::vector<OwnSlice> own_parts_;
  std::int64_t updates_ = 0;
};

}  // namespace motley
