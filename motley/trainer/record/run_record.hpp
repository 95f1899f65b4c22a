// The records that a training run keeps in its folder RUN/: run.json, what it was started with; metrics.jsonl, a line
// per step; timeline.json, when the newest step's passes ran.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// RUN/run.json
struct RunRecord {
  std::string model;           // folder of the weights that it began with
  std::string data;            // file
  std::string eval_data = {};  // file; empty: none
  std::int64_t steps = 0;
  std::int64_t total_steps = 0;  // of the first start: by which the learning rate comes down
  std::int64_t seed = 0;
  bool shuffle = true;
  std::int64_t save_every = 0;  // 0: after the last step alone
  std::int64_t eval_every = 0;  // 0: after the last step alone
  std::int64_t max_bad_steps = 10;
  bool async_save = false;  // checkpoints are copied, and written while the next steps run
  bool local = false;       // devices are processes of this machine
  bool agents = false;      // devices are those of machines that join
  Value plan;
  bool operator==(const RunRecord&) const = default;
};
Schema<RunRecord> schema_of(Bound<RunRecord>);

// A line of RUN/metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // mean of the targets that count
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // targets that count
  double seconds = 0;
  std::optional<double> eval_loss = {};  // of the weights after this step
  bool operator==(const StepMetrics&) const = default;
};
Schema<StepMetrics> schema_of(Bound<StepMetrics>);

// ---- RUN/timeline.json: seconds since the step began ----

struct TimelineSpan {
  double start_s = 0, end_s = 0;
  bool operator==(const TimelineSpan&) const = default;
};
Schema<TimelineSpan> schema_of(Bound<TimelineSpan>);

struct TimelinePass {
  std::int64_t micro_batch = 0;
  bool backward = false;
  double start_s = 0, end_s = 0;
  bool weights = false;  // of the backward pass the gradients of weights alone, which have waited
  bool operator==(const TimelinePass&) const = default;
};
Schema<TimelinePass> schema_of(Bound<TimelinePass>);

// What one worker did, or what a stage was predicted to do.
struct TimelineLane {
  std::int64_t replica = 0, stage = 0;
  std::string device;  // empty: predicted, of all devices of the stage
  std::vector<TimelinePass> passes;
  TimelineSpan exchange, update;  // of gradients; of weights
  bool operator==(const TimelineLane&) const = default;
};
Schema<TimelineLane> schema_of(Bound<TimelineLane>);

struct StepTimeline {
  std::int64_t step = 0;
  double seconds = 0;                   // of the step
  double predicted_s = 0;               // in cost form motley
  std::vector<TimelineLane> workers;    // in the order of the plan's devices
  std::vector<TimelineLane> predicted;  // by replica and stage; empty where the plan has no price
  bool operator==(const StepTimeline&) const = default;
};
Schema<StepTimeline> schema_of(Bound<StepTimeline>);

struct TrainRun {
  RunRecord record;
  std::vector<StepMetrics> metrics;
  std::optional<StepTimeline> timeline;
};

// ---- files ----

std::filesystem::path run_record_path(const std::filesystem::path& run);
std::filesystem::path metrics_path(const std::filesystem::path& run);
std::filesystem::path timeline_path(const std::filesystem::path& run);

// These throw an input error that names the file. A folder without run.json holds no run.
RunRecord read_run(const std::filesystem::path& run);
// Empty where there is no file yet. A last line that was not written to its end does not count.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& run);
// None before the first checkpoint.
std::optional<StepTimeline> read_timeline(const std::filesystem::path& run);
// All three; an input error where there is no step yet.
TrainRun read_train_run(const std::filesystem::path& run);

}  // namespace motley
