#include "motley/trainer/train_workers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <variant>

#include "motley/comm/net/random_bytes.hpp"
#include "motley/trainer/hang_rule.hpp"
#include "motley/trainer/layout/layout.hpp"
#include "motley/workers/worker_processes.hpp"

namespace motley {
namespace {

constexpr double look_every_s = 0.1;  // whether a stop was asked for
constexpr double start_s = 120;       // until a worker says its first word
constexpr double settle_s = 1;        // a worker that is lost is heard of after those that miss it

std::string random_key() {
  std::array<std::byte, 16> bytes{};
  fill_random(bytes);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

bool has_states(const TrainPlan& plan) { return state_kinds(training_of(plan.workload)).size() > 1; }

Workers start_processes(const std::vector<std::string>& devices, const std::filesystem::path& program) {
  Workers workers;
  for (const std::string& device : devices)
    workers.push_back({.device = device,
                       .stage = {},
                       .rank = 0,
                       .link = std::make_unique<WorkerProcess>(program, std::span<const int>())});
  return workers;
}

Workers placed(Workers workers, const TrainPlan& plan) {
  for (Worker& worker : workers) {
    const TrainPlace place = place_of(plan, worker.device);
    worker.stage = fmt::format("r{}/s{}", place.replica, place.stage);
    worker.rank = place.rank;
  }
  return workers;
}

}  // namespace

TrainWorkers::TrainWorkers(const TrainPlan& plan, const TrainWorkersOptions& options)
    : devices_(train_devices(plan)),
      watch_(placed(options.start ? options.start(plan, options.weights, has_states(plan) && options.updates > 0)
                                  : start_processes(devices_, options.program),
                    plan),
             {.silence_s = found_within * options.patience_s,
              .start_s = start_s,
              .settle_s = settle_s,
              .progress =
                  [loaded = options.loaded](const std::string&, double fraction) {
                    if (loaded) loaded(fraction);
                  }}),
      owes_(watch_.size()),
      patience_s_(options.patience_s),
      predicted_s_(plan.predicted.iteration_s),
      elsewhere_(options.start != nullptr),
      files_(state_files(plan.model.arch, training_of(plan.workload))),
      stopped_(options.stopped) {
  for (const std::string& device : devices_) {
    const TrainPlace place = place_of(plan, device);
    replica_of_.push_back(place.replica);
    first_.push_back(place.stage == 0);
    last_.push_back(place.stage + 1 == plan.replicas[place.replica].stages.size());
  }
  TrainLaunch launch{.plan_json = to_json(write(plan)),
                     .model_folder = options.weights.string(),
                     .device = {},
                     .backend = options.backend,
                     .threads = options.threads,
                     .updates = options.updates,
                     .key = random_key()};
  for (const Worker& worker : watch_.workers()) {
    launch.device = worker.device;
    worker.link->send(encode(launch));
  }
  TrainConnect connect;
  for (Listening& listening : await_all<Listening>()) connect.of_workers.push_back(std::move(listening.at));
  watch_.send(connect);
  ready_ = await_all<TrainReady>();
}

std::vector<TrainStepDone> TrainWorkers::run(TrainStep step, const std::vector<ReplicaBatch>& batches) {
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    const ReplicaBatch& batch = batches.at(replica_of_[i]);
    step.sequences = batch.sequences;
    step.inputs = first_[i] ? batch.inputs : std::vector<std::int32_t>();
    step.targets = last_[i] ? batch.targets : std::vector<std::int32_t>();
    watch_[i].link->send(encode(step));
  }
  step_ = {step.step, Clock::now()};
  std::vector<TrainStepDone> answers = await_all<TrainStepDone>();
  slowest_s_ = std::max(slowest_s_.value_or(0), seconds_since(step_->sent));
  step_.reset();
  for (std::size_t i = 1; i < answers.size(); ++i)
    if (answers[i].step != step.step || answers[i].loss != answers[0].loss ||
        answers[i].grad_norm != answers[0].grad_norm)
      // Numbers that are none do not equal themselves.
      if (answers[i].update == TrainStepDone::Update::done || answers[0].update == TrainStepDone::Update::done)
        throw Error(ErrorCode::peer, fmt::format("step {}: {} has a loss of {:.9g}, and {} of {:.9g}", step.step,
                                                 devices_[i], answers[i].loss, devices_[0], answers[0].loss));
  return answers;
}

void TrainWorkers::begin_save(const std::filesystem::path& folder, TrainSave::When when) {
  saved_ = 0;
  if (elsewhere_) writer_.emplace(folder, files_);
  watch_.send(TrainSave{elsewhere_ ? std::string() : folder.string(), when});
}

void TrainWorkers::wait_until_saved() {
  while (!saved()) take_messages({}, look_every_s);
}

void TrainWorkers::look() { take_messages({}, 0); }

template <class Answer>
std::vector<Answer> TrainWorkers::await_all() {
  std::vector<Answer> answers(watch_.size());
  owes_.assign(watch_.size(), true);
  const auto take = [&](std::size_t i, Message& message) {
    auto* answer = std::get_if<Answer>(&message);
    if (answer == nullptr || !owes_[i]) throw Error(ErrorCode::peer, "an unexpected message");
    answers[i] = std::move(*answer);
    owes_[i] = false;
  };
  while (std::ranges::find(owes_, true) != owes_.end()) take_messages(take, look_every_s);
  return answers;
}

void TrainWorkers::take_messages(const WorkerWatch::Take& take, double most_s) {
  watch_.wait(-1, most_s);
  if (stopped_ && stopped_()) throw Error(ErrorCode::interrupted, "stopped");
  const auto lost = watch_.receive([&](std::size_t i, Message& message) {
    if (const auto* part = std::get_if<TrainPart>(&message))
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

void TrainWorkers::write_part(const TrainPart& part) const {
  if (!writer_) throw Error(ErrorCode::peer, "a part of a checkpoint, and none is written");
  writer_->write(part.name, {{part.first_row, part.end_row}, {part.first_column, part.end_column}},
                 std::as_bytes(std::span(part.bytes)));
}

}  // namespace motley
