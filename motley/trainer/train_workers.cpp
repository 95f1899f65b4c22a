#include "motley/trainer/train_workers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <variant>

#include "motley/checkpoint/manifest.hpp"
#include "motley/plan/worker_part.hpp"
#include "motley/trainer/hang_rule.hpp"
#include "motley/trainer/layout/worker_layout.hpp"

namespace motley {
namespace {

constexpr double look_every_s = 0.1;  // whether a stop was asked for
constexpr double settle_s = 1;        // a worker that is lost is heard of after those that miss it

WorkerReads reads_of(const TrainPlan& plan, const TrainWorkersOptions& options) {
  const bool with_states = reads_states(plan, options.updates);
  return {.model = options.weights, .rows = [&plan, with_states](const std::string& device) {
            std::vector<ReadRows> read;
            for (const StateRows& rows : state_rows(plan, device, with_states))
              read.push_back({rows.name, rows.rows, rows.kind == StateKind::weight ? "" : states_stem});
            return read;
          }};
}

Workers start(const TrainPlan& plan, Fleet& fleet, const TrainWorkersOptions& options) {
  Workers none;
  Workers workers = start_workers(fleet, train_devices(plan), reads_of(plan, options), none, options.stop_start);
  for (Worker& worker : workers) {
    const TrainPlace place = place_of(plan, worker.device);
    worker.stage = fmt::format("r{}/s{}", place.replica, place.stage);
    worker.rank = place.rank;
  }
  return workers;
}

}  // namespace

bool reads_states(const TrainPlan& plan, std::int64_t updates) {
  return updates > 0 && state_kinds(training_of(plan.workload)).size() > 1;
}

TrainWorkers::TrainWorkers(const TrainPlan& plan, Fleet& fleet, const TrainWorkersOptions& options)
    : devices_(train_devices(plan)),
      watch_(start(plan, fleet, options), {.silence_s = found_within * options.patience_s,
                                           .start_s = start_patience_s,
                                           .settle_s = settle_s,
                                           .progress =
                                               [loaded = options.loaded](const std::string&, double fraction) {
                                                 if (loaded) loaded(fraction);
                                               }}),
      owes_(watch_.size()),
      patience_s_(options.patience_s),
      predicted_s_(plan.predicted.iteration_s),
      writes_here_(fleet.is_here()),
      files_(state_files(plan.model.arch, training_of(plan.workload))),
      stopped_(options.stopped) {
  TrainLaunch launch{.plan_json = to_json(write(part_of(plan))), .updates = options.updates, .workers = {}};
  for (const Worker& worker : watch_.workers()) {
    const TrainPlace place = place_of(plan, worker.device);
    replica_of_.push_back(place.replica);
    first_.push_back(place.stage == 0);
    last_.push_back(place.stage + 1 == plan.replicas[place.replica].stages.size());
    launch.workers.push_back(worker.at);
  }
  watch_.send(encode_train(launch));
  ready_ = await_all<TrainReady>();
}

std::vector<TrainStepDone> TrainWorkers::run(TrainStep step, const std::vector<ReplicaBatch>& batches) {
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    const ReplicaBatch& batch = batches.at(replica_of_[i]);
    step.sequences = batch.sequences;
    step.inputs = first_[i] ? batch.inputs : std::vector<std::int32_t>();
    step.targets = last_[i] ? batch.targets : std::vector<std::int32_t>();
    watch_[i].handle->send(encode(encode_train(step)));
  }
  step_ = {step.step, Clock::now()};
  std::vector<TrainStepDone> answers = await_all<TrainStepDone>();
  slowest_s_ = std::max(slowest_s_.value_or(0), seconds_since(step_->sent));
  step_.reset();
  for (std::size_t i = 1; i < answers.size(); ++i)
    if (answers[i].step != step.step || answers[i].loss != answers[0].loss ||
        answers[i].grad_norm != answers[0].grad_norm)
      // NaN is not equal to itself.
      if (answers[i].update == TrainStepDone::Update::done || answers[0].update == TrainStepDone::Update::done)
        throw Error(ErrorCode::peer, fmt::format("step {}: {} has a loss of {:.9g}, and {} of {:.9g}", step.step,
                                                 devices_[i], answers[i].loss, devices_[0], answers[0].loss));
  return answers;
}

void TrainWorkers::begin_save(const std::filesystem::path& folder, TrainSave::When when) {
  saved_ = 0;
  if (!writes_here_) writer_.emplace(folder, files_);
  watch_.send(encode_train(TrainSave{writes_here_ ? folder.string() : std::string(), when}));
}

void TrainWorkers::wait_until_saved() {
  while (!saved()) take_messages({}, look_every_s);
}

void TrainWorkers::look() { take_messages({}, 0); }

template <class Answer>
std::vector<Answer> TrainWorkers::await_all() {
  std::vector<Answer> answers(watch_.size());
  owes_.assign(watch_.size(), true);
  const auto take = [&](std::size_t i, TrainMessage& message) {
    auto* answer = std::get_if<Answer>(&message);
    if (answer == nullptr || !owes_[i]) throw Error(ErrorCode::peer, "an unexpected message");
    answers[i] = std::move(*answer);
    owes_[i] = false;
  };
  while (std::ranges::find(owes_, true) != owes_.end()) take_messages(take, look_every_s);
  return answers;
}

void TrainWorkers::take_messages(const Take& take, double most_s) {
  watch_.wait(-1, most_s);
  if (stopped_ && stopped_()) throw Error(ErrorCode::interrupted, "stopped");
  const auto lost = watch_.receive([&](std::size_t i, const Message& sent) {
    TrainMessage message = decode_train(sent);
    if (const auto* part = std::get_if<TrainSlice>(&message))
      write_part(*part);
    else if (std::holds_alternative<TrainSaved>(message))
      take_saved();
    else if (take)
      take(i, message);
    else
      throw Error(ErrorCode::peer, "an unexpected message");
  });
  if (lost) {
    const Error cause = watch_.describe(lost->worker).cause;
    throw WorkerLost(cause.code(), watch_.said(lost->worker) ? cause.what() : "the worker of " + cause.message(),
                     cause.hint());
  }
  if (const auto silent = watch_.silent())
    throw WorkerLost(silent->cause.code(), "the worker of " + silent->cause.message());
  check_hanging();
}

// Those that owe an answer to the step under way.
void TrainWorkers::check_hanging() const {
  if (!step_) return;
  const double listening_s = std::min(seconds_since(watch_.listening()), seconds_since(step_->sent));
  std::vector<WorkerAtStep> workers;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    names.push_back(watch_[i].name());
    if (!owes_[i]) continue;
    const WorkerWatch::Seen& seen = watch_.seen(i);
    workers.push_back({.name = names.back(),
                       .activity = seen.activity,
                       .for_s = std::min(listening_s, seen.for_s()),
                       .blocked_s = std::min(listening_s, seconds_since(seen.went_on))});
  }
  if (const auto hang = find_hang(workers, names, step_->step, hang_limits(patience_s_, slowest_s_, predicted_s_)))
    throw WorkerLost(ErrorCode::peer, *hang);
}

void TrainWorkers::take_saved() {
  ++saved_;
  if (saved()) writer_.reset();  // what is written stays as it is
}

void TrainWorkers::write_part(const TrainSlice& part) const {
  if (!writer_) throw Error(ErrorCode::peer, "a part of a checkpoint, and none is written");
  writer_->write(part.name, {{part.first_row, part.end_row}, {part.first_column, part.end_column}},
                 std::as_bytes(std::span(part.bytes)));
}

}  // namespace motley
