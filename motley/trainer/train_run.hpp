// A run of a training plan: its folder, its steps, its checkpoints. RUN/ holds run.json (what it was started with),
// metrics.jsonl (a line per step), step-N/ (checkpoints) and latest (the name of the newest).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/plan/train.hpp"
#include "motley/trainer/train_workers.hpp"

namespace motley {

// RUN/run.json
struct RunRecord {
  std::string model;      // folder of the weights that it began with
  std::string data;       // file
  std::string eval_data;  // file; empty: none
  std::int64_t steps = 0;
  std::int64_t total_steps = 0;  // of the first start: by which the learning rate comes down
  std::int64_t seed = 0;
  bool shuffle = true;
  std::int64_t save_every = 0;  // 0: after the last step alone
  std::int64_t eval_every = 0;  // likewise
  std::int64_t max_bad_steps = 10;
  bool local = false;  // devices are processes of this machine
  Value plan;
  bool operator==(const RunRecord&) const = default;
};
template <>
const Schema<RunRecord>& schema<RunRecord>();

// A line of RUN/metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean of the targets that count
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // targets that count
  double seconds = 0;
  std::optional<double> eval_loss;  // of the weights after this step
  bool operator==(const StepMetrics&) const = default;
};
template <>
const Schema<StepMetrics>& schema<StepMetrics>();

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
// Goes on from the newest checkpoint, or that of step `from`; from the model where there is none. `run.json` is
// `record` from then on; it is not written where something is wrong with data or checkpoint, which is an input error.
RunOutcome go_on(const std::filesystem::path& run, const RunRecord& record, std::optional<std::int64_t> from,
                 TrainWorkersOptions workers, const RunEvents& events);

RunRecord read_run(const std::filesystem::path& run);
std::vector<StepMetrics> read_metrics(const std::filesystem::path& run);

}  // namespace motley
