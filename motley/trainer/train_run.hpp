// A run of a training plan: its steps and its checkpoints. In addition to what run_record.hpp reads, RUN/ holds step-N/
// (checkpoints), latest (the name of the newest), data/ (texts as tokens) and tensorboard/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/trainer/record/run_record.hpp"
#include "motley/trainer/train_workers.hpp"

namespace motley {

// What a run tells while it goes on.
struct RunEvents {
  std::function<void(const std::string& phase, double fraction)> starting = {};
  std::function<void(const TrainWorkers& workers)> ready = {};
  std::function<void(const StepMetrics& metrics, const std::vector<TrainStepDone>& workers)> step = {};
  std::function<void(const std::string& what)> notice = {};  // a skipped step, a checkpoint
  std::function<bool()> stop = {};                           // asked after every step: then the run saves, and ends
  std::function<bool()> abort = {};                          // asked often: then it ends at once
};

struct RunOutcome {
  std::int64_t step = 0;  // the last that was run
  bool stopped = false;   // before `steps`
};

// Throws an input error where the folder holds a run already.
void check_no_run(const std::filesystem::path& run);
// Where the workers run, once it is known what they read: a model folder or a checkpoint's, with the optimizer's states
// or without.
using TrainFleet = std::function<Fleet&(const TrainPlan& plan, const std::filesystem::path& weights, bool with_states)>;

// Goes on from the newest checkpoint, or that of step `from`; from the model where there is none. `run.json` is
// `record` from then on; it is not written where something is wrong with data or checkpoint, which is an input error.
RunOutcome run_from_checkpoint(const std::filesystem::path& run, const RunRecord& record,
                               std::optional<std::int64_t> from, const TrainFleet& fleet, const RunEvents& events);

}  // namespace motley
