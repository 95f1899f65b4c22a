#include "motley/trainer/train_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/trainer/checkpoint_folder.hpp"
#include "motley/trainer/data/training_data.hpp"
#include "motley/trainer/layout/worker_layout.hpp"
#include "motley/trainer/step_speed.hpp"
#include "motley/trainer/step_timeline.hpp"
#include "motley/trainer/tensorboard.hpp"
#include "motley/workers/worker_loss.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kept_checkpoints = 2;

// Sequences of a step, or of an evaluation, cut among the replicas.
struct StepBatch {
  std::vector<ReplicaBatch> of_replica;
  std::int64_t tokens = 0;  // that count
};

StepBatch cut_batch(const std::vector<TrainSequence>& sequences, const std::vector<std::int64_t>& bounds) {
  StepBatch batch;
  for (std::size_t r = 0; r + 1 < bounds.size(); ++r) {
    ReplicaBatch& own = batch.of_replica.emplace_back();
    own.sequences = bounds[r + 1] - bounds[r];
    for (std::int64_t i = bounds[r]; i < bounds[r + 1]; ++i) {
      const TrainSequence& sequence = sequences.at(static_cast<std::size_t>(i));
      own.inputs.insert(own.inputs.end(), sequence.inputs.begin(), sequence.inputs.end());
      own.targets.insert(own.targets.end(), sequence.targets.begin(), sequence.targets.end());
      batch.tokens += std::ranges::count_if(sequence.targets, [](std::int32_t target) { return target >= 0; });
    }
  }
  return batch;
}

// Lines that are on the disk once they are written, so that no step begins before the one before it is on record.
class MetricsFile {
 public:
  // Keeps the lines up to this step.
  MetricsFile(const fs::path& run, std::int64_t step) : path_(metrics_path(run)) {
    std::string kept;
    for (const StepMetrics& metrics : read_metrics(run))
      if (metrics.step <= step) kept += to_json(write(metrics)) + "\n";
    write_file(path_, kept);
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    if (!file_) throw environment_error("cannot write " + path_.string());
  }

  void add(const StepMetrics& metrics) const {
    const std::string line = to_json(write(metrics)) + "\n";
    const ::ssize_t written = ::write(file_.get(), line.data(), line.size());
    if (written != std::ssize(line)) throw environment_error("cannot write " + path_.string());
  }

 private:
  fs::path path_;
  FileDescriptor file_;
};

class Run {
 public:
  Run(fs::path folder, const RunRecord& record, const RunEvents& events)
      : folder_(std::move(folder)),
        record_(record),
        events_(events),
        plan_(read_plan<TrainPlan>(record.plan, run_record_path(folder_).string() + ": plan")),
        training_(training_of(plan_.workload)) {}

  RunOutcome run_from_checkpoint(std::optional<std::int64_t> from, const TrainFleet& fleet) {
    std::error_code failure;
    fs::create_directories(folder_, failure);
    if (failure)
      throw Error(ErrorCode::environment, fmt::format("cannot make {}: {}", folder_.string(), failure.message()));
    find_start(from);
    if (step_ >= record_.steps) return {.step = step_};
    data_ = open_data(record_.data);
    if (data_->sequences() < training_.global_batch)
      throw input_error(fmt::format("{}: {} sequences of {} tokens, and a step takes {}", record_.data,
                                    data_->sequences(), training_.sequence_length, training_.global_batch),
                        "give more data, or plan with a smaller global_batch or sequence_length");
    if (!record_.eval_data.empty()) eval_data_ = open_data(record_.eval_data);
    write_file(run_record_path(folder_), to_json(write(record_), 1) + "\n");
    const MetricsFile metrics(folder_, step_);
    tensorboard_.emplace(folder_ / "tensorboard", step_ + 1);

    try {
      return run_steps(metrics, fleet);
    } catch (const WorkerLost& lost) {
      throw with_way_on(lost);
    } catch (const WorkersNotStarted& lost) {
      throw with_way_on(lost);
    }
  }

 private:
  RunOutcome run_steps(const MetricsFile& metrics, const TrainFleet& fleet) {
    TrainWorkers workers(plan_, fleet(plan_, weights_, reads_states(plan_, updates_)),
                         {.weights = weights_,
                          .updates = updates_,
                          .loaded = [this](double fraction) { tell_starting("weights", fraction); },
                          .stop_start = events_.stop,
                          .stopped = events_.abort});
    if (events_.ready) events_.ready(workers);
    bool stopped = false;
    while (step_ < record_.steps && !stopped) {
      run_step(workers, metrics);
      stopped = events_.stop && events_.stop() && step_ < record_.steps;
      const bool due = record_.save_every > 0 && step_ % record_.save_every == 0;
      if (due || stopped || step_ == record_.steps) begin_save(workers);
      if (record_.async_save)
        look_after_save(workers);
      else
        finish_save(workers);
    }
    finish_save(workers);
    return {.step = step_, .stopped = stopped};
  }

  // After a loss. A checkpoint that all workers have written counts.
  Error with_way_on(const Error& lost) const {
    if (lost.code() == ErrorCode::input || lost.code() == ErrorCode::interrupted) return lost;
    if (save_ && save_->committed.valid()) save_->committed.wait();
    const std::vector<std::int64_t> steps = checkpoints_of(folder_);
    const std::string resume = fmt::format("`motley train --resume {}`", folder_.string());
    const std::string way_on =
        steps.empty() ? fmt::format("the run has no checkpoint: {} begins it again", resume)
                      : fmt::format("the run goes on from the checkpoint of step {} with {}", steps.back(), resume);
    return Error(lost.code(), lost.what(), lost.hint() + (lost.hint().empty() ? "" : "; ") + way_on);
  }

  void find_start(std::optional<std::int64_t> from) {
    const std::vector<std::int64_t> steps = checkpoints_of(folder_);
    weights_ = record_.model;
    if (steps.empty() && !from) return;
    if (from && std::ranges::find(steps, *from) == steps.end())
      throw input_error(fmt::format("{}: there is no checkpoint of step {}", folder_.string(), *from),
                        steps.empty() ? "the run has none" : fmt::format("the newest is that of {}", steps.back()));
    weights_ = folder_ / checkpoint_name(from.value_or(steps.back()));
    const CheckpointRecord checkpoint = verify_checkpoint(weights_);
    step_ = checkpoint.step;
    updates_ = checkpoint.updates;
    const auto before = read_plan<TrainPlan>(checkpoint.plan, weights_.string() + "/motley.json: plan");
    const Training& then = training_of(before.workload);
    if (before.model.arch != plan_.model.arch)
      throw input_error(fmt::format("{} is a checkpoint of another model than the plan's", weights_.string()),
                        "plan for the model that the run trains");
    if (checkpoint.sequences != step_ * training_.global_batch || then.sequence_length != training_.sequence_length)
      throw input_error(
          fmt::format(
              "{}: {} sequences of {} tokens were taken in {} steps, and the plan takes {} of {} tokens per step",
              weights_.string(), checkpoint.sequences, then.sequence_length, step_, training_.global_batch,
              training_.sequence_length),
          "plan with the same global_batch and sequence_length");
    if (state_kinds(then) != state_kinds(training_) || then.precision != training_.precision)
      throw input_error(
          fmt::format("{}: the checkpoint was trained with another optimizer or precision than the plan's",
                      weights_.string()),
          "plan with the same optimizer and precision");
  }

  std::unique_ptr<TrainingData> open_data(const std::string& file) {
    return TrainingData::open({.file = file,
                               .model = record_.model,
                               .cache = folder_ / "data",
                               .sequence_length = training_.sequence_length,
                               .vocabulary = plan_.model.arch.vocabulary,
                               .shuffle = record_.shuffle,
                               .seed = static_cast<std::uint64_t>(record_.seed),
                               .progress = [this](double fraction) { tell_starting("data", fraction); }});
  }

  void run_step(TrainWorkers& workers, const MetricsFile& metrics_file) {
    const std::int64_t step = step_ + 1;
    const Instant start = Clock::now();
    const StepBatch batch = cut_batch(data_->batch(step, training_.global_batch), replica_bounds(plan_));
    StepMetrics metrics;
    metrics.step = step;
    metrics.learning_rate = learning_rate(training_, step, record_.total_steps);
    metrics.tokens = batch.tokens;
    std::vector<TrainStepDone> answers;
    if (batch.tokens > 0)
      answers = workers.run({.step = static_cast<std::uint64_t>(step),
                             .wanted = TrainStep::Wanted::update,
                             .learning_rate = metrics.learning_rate,
                             .tokens = batch.tokens},
                            batch.of_replica);
    step_ = step;
    tell_pace(workers, answers);
    if (answers.empty() || answers.front().update == TrainStepDone::Update::none) {
      ++bad_steps_;
      const std::string why = answers.empty() ? "no target of its batch counts"
                                              : fmt::format("its loss is {} and the norm of its gradients {}",
                                                            answers.front().loss, answers.front().grad_norm);
      if (events_.notice) events_.notice(fmt::format("step {} is skipped: {}", step, why));
      if (bad_steps_ > record_.max_bad_steps)
        throw Error(ErrorCode::limit, fmt::format("{} steps in a row were skipped: {}", bad_steps_, why),
                    "the last checkpoint is good; a smaller learning_rate, or clip_norm = 1, may help");
      return;
    }
    bad_steps_ = 0;
    ++updates_;
    metrics.loss = loss_ = answers.front().loss;
    metrics.grad_norm = answers.front().grad_norm;
    metrics.seconds = seconds_since(start);
    const bool due = record_.eval_every > 0 && step % record_.eval_every == 0;
    if (eval_data_ && (due || step == record_.steps)) metrics.eval_loss = evaluate(workers);
    metrics_file.add(metrics);
    show(metrics);
    if (!memory_told_) tell_memory(workers, answers);
    if (events_.step) events_.step(metrics, answers);
    newest_ = {metrics, std::move(answers)};
  }

  void show(const StepMetrics& metrics) const {
    std::vector<TensorBoardFile::Scalar> scalars = {
        {"loss", metrics.loss},
        {"grad_norm", metrics.grad_norm},
        {"learning_rate", metrics.learning_rate},
        {"tokens_per_s", static_cast<double>(training_.global_batch * training_.sequence_length) / metrics.seconds}};
    if (metrics.eval_loss) scalars.push_back({"eval_loss", *metrics.eval_loss});
    tensorboard_->add(metrics.step, scalars);
  }

  void tell_pace(const TrainWorkers& workers, const std::vector<TrainStepDone>& answers) {
    if (answers.empty()) return;
    std::vector<double> seconds;
    for (const TrainStepDone& done : answers) seconds.push_back(done.compute_s);
    for (const StepSpeed::Change& change : speed_.add(seconds))
      if (events_.notice)
        events_.notice(change.slow ? fmt::format("{} is slow: computing a step takes {:.0f} times as long as usual",
                                                 workers.devices()[change.worker], change.factor)
                                   : fmt::format("{} is as fast as usual again", workers.devices()[change.worker]));
  }

  // Against the plan's figure: of the worker that is farthest above it, or the least below.
  void tell_memory(const TrainWorkers& workers, const std::vector<TrainStepDone>& answers) {
    memory_told_ = true;
    std::size_t i = 0, worst = 0;
    std::vector<std::int64_t> used, planned;
    for (const TrainReplica& replica : plan_.replicas)
      for (std::size_t s = 0; s < replica.stages.size(); ++s)
        for (const TrainMemory& memory : stage_memory(plan_, replica, s)) {
          const TrainReady& states = workers.allocated()[i];
          used.push_back(states.weight_bytes + states.gradient_bytes + states.optimizer_bytes +
                         answers[i].activation_bytes);
          planned.push_back(memory.total() - memory.reserve);
          const auto ratio = [&](std::size_t at) {
            return static_cast<double>(used[at]) / static_cast<double>(planned[at]);
          };
          if (ratio(i) > ratio(worst)) worst = i;
          ++i;
        }
    if (events_.notice)
      events_.notice(fmt::format("memory: {} took {} at most, planned {}", workers.devices()[worst],
                                 human_bytes(static_cast<double>(used[worst])),
                                 human_bytes(static_cast<double>(planned[worst]))));
  }

  double evaluate(TrainWorkers& workers) {
    double sum = 0;
    std::int64_t tokens = 0;
    for (std::int64_t first = 0; first < eval_data_->sequences(); first += training_.global_batch) {
      const std::int64_t count = std::min(training_.global_batch, eval_data_->sequences() - first);
      std::vector<TrainSequence> sequences;
      for (std::int64_t i = 0; i < count; ++i) sequences.push_back(eval_data_->sequence(first + i));
      std::vector<std::int64_t> bounds = replica_bounds(plan_);
      for (std::int64_t& bound : bounds) bound = bound * count / training_.global_batch;
      const StepBatch batch = cut_batch(sequences, bounds);
      if (batch.tokens == 0) continue;
      const auto answers = workers.run(
          {.step = static_cast<std::uint64_t>(step_), .wanted = TrainStep::Wanted::loss, .tokens = batch.tokens},
          batch.of_replica);
      sum += answers.front().loss * static_cast<double>(batch.tokens);
      tokens += batch.tokens;
    }
    return tokens > 0 ? sum / static_cast<double>(tokens) : std::nan("");
  }

  // One checkpoint is written at a time.
  void begin_save(TrainWorkers& workers) {
    finish_save(workers);
    save_ = Save{.step = step_, .start = Clock::now()};
    save_->folder = begin_checkpoint(folder_, step_, plan_, record_.model);
    save_->record = {.step = step_,
                     .updates = updates_,
                     .sequences = step_ * training_.global_batch,
                     .seed = record_.seed,
                     .loss = loss_,
                     .files = {},
                     .plan = record_.plan};
    workers.begin_save(save_->folder, record_.async_save ? TrainSave::When::beside_steps : TrainSave::When::now);
    if (newest_) {
      const StepTimeline timeline = step_timeline(plan_, newest_->metrics, newest_->workers);
      write_file(timeline_path(folder_), to_json(write(timeline)) + "\n");
    }
  }

  // What there is to do for a checkpoint that is being written, without waiting.
  void look_after_save(TrainWorkers& workers) {
    if (!save_ || !workers.saved()) return;
    if (!save_->committed.valid())
      save_->committed =
          std::async(std::launch::async, [run = folder_, folder = save_->folder, record = save_->record] {
            commit_checkpoint(folder, record);
            prune_checkpoints(run, kept_checkpoints);
          });
    if (save_->committed.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    save_->committed.get();
    if (events_.notice)
      events_.notice(fmt::format("{} written in {:.2f} s", (folder_ / checkpoint_name(save_->step)).string(),
                                 seconds_since(save_->start)));
    save_.reset();
  }

  void finish_save(TrainWorkers& workers) {
    if (save_) workers.wait_until_saved();
    for (look_after_save(workers); save_; look_after_save(workers)) {
      save_->committed.wait_for(std::chrono::milliseconds(10));
      workers.look();
    }
  }

  void tell_starting(const std::string& phase, double fraction) const {
    if (events_.starting) events_.starting(phase, fraction);
  }

  const fs::path folder_;
  const RunRecord& record_;
  const RunEvents& events_;
  const TrainPlan plan_;
  const Training& training_;
  std::unique_ptr<TrainingData> data_, eval_data_;
  fs::path weights_;
  std::int64_t step_ = 0, updates_ = 0, bad_steps_ = 0;
  double loss_ = 0;
  std::optional<TensorBoardFile> tensorboard_;
  struct DoneStep {
    StepMetrics metrics;
    std::vector<TrainStepDone> workers;
  };
  std::optional<DoneStep> newest_;
  StepSpeed speed_;
  bool memory_told_ = false;
  struct Save {
    std::int64_t step = 0;
    Instant start;
    fs::path folder = {};  // unnamed so far
    CheckpointRecord record = {};
    std::future<void> committed = {};
  };
  std::optional<Save> save_;
};

}  // namespace

void check_no_run(const fs::path& run) {
  std::error_code ignored;
  if (fs::exists(run_record_path(run), ignored) || !checkpoints_of(run).empty())
    throw input_error(
        fmt::format("{} holds a run", run.string()),
        fmt::format("go on with it by `motley train --resume {}`, or give another --output", run.string()));
}

RunOutcome run_from_checkpoint(const fs::path& run, const RunRecord& record, std::optional<std::int64_t> from,
                               const TrainFleet& fleet, const RunEvents& events) {
  return Run(run, record, events).run_from_checkpoint(from, fleet);
}

}  // namespace motley
