#include "motley/trainer/record/run_record.hpp"

#include <fmt/format.h>

#include <sstream>

namespace motley {

namespace fs = std::filesystem;

Schema<RunRecord> schema_of(Bound<RunRecord>) {
  using R = RunRecord;
  constexpr Limits written{.always_written = true, .min = 0};
  return Schema<R>("run", "What a training run was started with.")
      .format("motley.run/1")
      .field("model", &R::model, "Folder of the weights that it began with.", {.required = true})
      .field("data", &R::data, "File of training data.", {.required = true})
      .field("eval_data", &R::eval_data, "File of validation data.")
      .field("steps", &R::steps, "Steps in all.", {.required = true, .min = 0})
      .field("total_steps", &R::total_steps, "Steps of the first start.", {.required = true, .min = 0})
      .field("seed", &R::seed, "Of the order of the data.", {.always_written = true})
      .field("shuffle", &R::shuffle, "Whether that order is random.", {.always_written = true})
      .field("save_every", &R::save_every, "Steps from one checkpoint to the next; 0: the last step's alone.", written)
      .field("eval_every", &R::eval_every, "The same for the validation loss.", written)
      .field("max_bad_steps", &R::max_bad_steps, "Skipped steps in a row that a run survives.", written)
      .field("async_save", &R::async_save, "Whether checkpoints are written while the next steps run.")
      .field("local", &R::local, "Whether devices are processes of this machine.", {.always_written = true})
      .field("agents", &R::agents, "Whether devices are those of machines that join.")
      .field("plan", &R::plan, "The training plan.", {.required = true});
}

Schema<StepMetrics> schema_of(Bound<StepMetrics>) {
  using M = StepMetrics;
  constexpr Limits required{.required = true};
  return Schema<M>("step", "A step that changed the weights.")
      .field("step", &M::step, "From 1.", required)
      .field("loss", &M::loss, "Mean over the targets that count.", required)
      .field("grad_norm", &M::grad_norm, "Of all gradients, before clipping.", required)
      .field("learning_rate", &M::learning_rate, "Of the step.", required)
      .field("tokens", &M::tokens, "Targets that count.", required)
      .field("seconds", &M::seconds, "Of the step.", required)
      .field("eval_loss", &M::eval_loss, "Validation loss after the step, where it was measured.");
}

Schema<TimelineSpan> schema_of(Bound<TimelineSpan>) {
  using T = TimelineSpan;
  return Schema<T>("span", "A span of time, in seconds since the step began.")
      .field("start_s", &T::start_s, "Its start.", {.required = true, .min = 0})
      .field("end_s", &T::end_s, "Its end.", {.required = true, .min = 0});
}

Schema<TimelinePass> schema_of(Bound<TimelinePass>) {
  using T = TimelinePass;
  constexpr Limits required{.required = true, .min = 0};
  return Schema<T>("pass", "A pass of a micro-batch through a stage.")
      .field("micro_batch", &T::micro_batch, "From 0.", required)
      .field("backward", &T::backward, "Whether it is the backward pass.", {.required = true})
      .field("start_s", &T::start_s, "When its input was there, in seconds since the step began.", required)
      .field("end_s", &T::end_s, "When its output was computed.", required)
      .field("weights", &T::weights,
             "Whether it is the part of the backward pass that computes the gradients of weights, where they wait.");
}

Schema<TimelineLane> schema_of(Bound<TimelineLane>) {
  using T = TimelineLane;
  constexpr Limits required{.required = true, .min = 0};
  return Schema<T>("lane", "What a worker did, or what a stage was predicted to do.")
      .field("replica", &T::replica, "Replica of the plan.", required)
      .field("stage", &T::stage, "Stage of the replica.", required)
      .field("device", &T::device, "The worker's device; none: predicted for the stage.")
      .field("passes", &T::passes, "In the order of their starts.", {.required = true})
      .field("exchange", &T::exchange, "Exchange of gradients.", {.required = true})
      .field("update", &T::update, "Update of the weights.", {.required = true});
}

Schema<StepTimeline> schema_of(Bound<StepTimeline>) {
  using T = StepTimeline;
  constexpr Limits required{.required = true, .min = 0};
  return Schema<T>("timeline", "When the passes of a step ran, and when they were predicted to.")
      .format("motley.timeline/1")
      .field("step", &T::step, "Number of the step.", required)
      .field("seconds", &T::seconds, "Duration of the step.", required)
      .field("predicted_s", &T::predicted_s, "Predicted duration, in cost form motley.", {.min = 0})
      .field("workers", &T::workers, "Each worker's, in the order of the plan's devices.", {.required = true})
      .field("predicted", &T::predicted, "Predicted, by replica and stage.");
}

fs::path run_record_path(const fs::path& run) { return run / "run.json"; }
fs::path metrics_path(const fs::path& run) { return run / "metrics.jsonl"; }
fs::path timeline_path(const fs::path& run) { return run / "timeline.json"; }

RunRecord read_run(const fs::path& run) {
  const fs::path path = run_record_path(run);
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw input_error(fmt::format("{} holds no run: {} is missing", run.string(), path.filename().string()),
                      "give the --output of an earlier `motley train`");
  return read<RunRecord>(read_document(path), path.string());
}

std::vector<StepMetrics> read_metrics(const fs::path& run) {
  const fs::path path = metrics_path(run);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  std::istringstream lines(read_file(path));
  std::vector<StepMetrics> metrics;
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    if (lines.eof()) break;  // a line that was not written to its end
    const std::string place = fmt::format("{}:{}", path.string(), number);
    metrics.push_back(read<StepMetrics>(parse_json(line, place), place));
  }
  return metrics;
}

std::optional<StepTimeline> read_timeline(const fs::path& run) {
  const fs::path path = timeline_path(run);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  return read<StepTimeline>(read_document(path), path.string());
}

TrainRun read_train_run(const fs::path& run) {
  TrainRun all{.record = read_run(run), .metrics = read_metrics(run), .timeline = read_timeline(run)};
  if (all.metrics.empty())
    throw input_error(
        fmt::format("{} has no steps yet: {} is empty or missing", run.string(), metrics_path(run).filename().string()),
        fmt::format("go on with the run by `motley train --resume {}`", run.string()));
  return all;
}

}  // namespace motley
