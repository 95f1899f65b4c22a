#include "motley/trainer/train_workers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <variant>

#include "motley/comm/net/random_bytes.hpp"
#include "motley/trainer/layout/layout.hpp"
#include "motley/workers/worker_processes.hpp"

namespace motley {
namespace {

constexpr double grace_s = 0.5;
constexpr double look_every_s = 0.1;  // whether a stop was asked for
constexpr double cause_s = 1;         // a worker that is lost is heard of after those that miss it

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

}  // namespace

TrainWorkers::TrainWorkers(const TrainPlan& plan, const TrainWorkersOptions& options)
    : devices_(train_devices(plan)),
      workers_(options.start ? options.start(plan, options.weights, has_states(plan) && options.updates > 0)
                             : start_processes(devices_, options.program)),
      elsewhere_(options.start != nullptr),
      files_(state_files(plan.model.arch, training_of(plan.workload))),
      stopped_(options.stopped) {
  for (Worker& worker : workers_) {
    const TrainPlace place = place_of(plan, worker.device);
    replica_of_.push_back(place.replica);
    first_.push_back(place.stage == 0);
    last_.push_back(place.stage + 1 == plan.replicas[place.replica].stages.size());
    worker.stage = fmt::format("r{}/s{}", place.replica, place.stage);
    worker.rank = place.rank;
  }
  TrainLaunch launch{.plan_json = to_json(write(plan)),
                     .model_folder = options.weights.string(),
                     .device = {},
                     .backend = options.backend,
                     .threads = options.threads,
                     .updates = options.updates,
                     .key = random_key()};
  for (const Worker& worker : workers_) {
    launch.device = worker.device;
    worker.link->send(encode(launch));
  }
  try {
    TrainConnect connect;
    for (Listening& listening : await_all<Listening>()) connect.of_workers.push_back(std::move(listening.at));
    const std::string message = encode(connect);
    for (const Worker& worker : workers_) worker.link->send(message);
    ready_ = await_all<TrainReady>(options.loaded);
  } catch (...) {
    end_workers(workers_, grace_s);
    throw;
  }
}

TrainWorkers::~TrainWorkers() { end_workers(workers_, grace_s); }

std::vector<TrainStepDone> TrainWorkers::run(TrainStep step, const std::vector<ReplicaBatch>& batches) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const ReplicaBatch& batch = batches.at(replica_of_[i]);
    step.sequences = batch.sequences;
    step.inputs = first_[i] ? batch.inputs : std::vector<std::int32_t>();
    step.targets = last_[i] ? batch.targets : std::vector<std::int32_t>();
    workers_[i].link->send(encode(step));
  }
  std::vector<TrainStepDone> answers = await_all<TrainStepDone>();
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
  const std::string message = encode(TrainSave{elsewhere_ ? std::string() : folder.string(), when});
  for (const Worker& worker : workers_) worker.link->send(message);
}

void TrainWorkers::wait_until_saved() {
  while (!saved()) take_messages({});
}

template <class Answer>
std::vector<Answer> TrainWorkers::await_all(const std::function<void(double)>& progress) {
  std::vector<std::optional<Answer>> answers(workers_.size());
  std::vector<double> fractions(workers_.size());
  const auto take = [&](std::size_t i, Message& message) {
    if (auto* answer = std::get_if<Answer>(&message)) {
      answers[i] = std::move(*answer);
    } else if (const auto* loaded = std::get_if<Progress>(&message)) {
      fractions[i] = loaded->fraction;
      const double sum = std::accumulate(fractions.begin(), fractions.end(), 0.0);
      if (progress) progress(sum / static_cast<double>(fractions.size()));
    }
  };
  while (std::ranges::any_of(answers, [](const auto& answer) { return !answer; })) take_messages(take);
  std::vector<Answer> taken;
  for (std::optional<Answer>& answer : answers) taken.push_back(*std::move(answer));
  return taken;
}

// Waits a moment for some.
void TrainWorkers::take_messages(const std::function<void(std::size_t, Message&)>& take) {
  wait_for_workers(workers_, -1, look_every_s);
  if (stopped_ && stopped_()) throw Error(ErrorCode::interrupted, "stopped");
  std::optional<Error> lost;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    try {
      for (Message& message : workers_[i].link->receive())
        if (const auto* failure = std::get_if<Failure>(&message))
          throw Error(static_cast<ErrorCode>(failure->code), workers_[i].name() + ": " + failure->message,
                      failure->hint);
        else if (const auto* part = std::get_if<TrainPart>(&message))
          write_part(*part);
        else if (std::holds_alternative<TrainSaved>(message))
          take_saved();
        else if (take)
          take(i, message);
    } catch (const Error& error) {
      // That one misses another is no cause; the other's end is.
      if (error.code() != ErrorCode::peer) throw;
      lost = error;
    }
  }
  check_ended();
  if (!lost) return;
  for (const Instant until = deadline_in(cause_s); seconds_until(until) > 0; ::poll(nullptr, 0, 10)) check_ended();
  throw *lost;
}

void TrainWorkers::take_saved() {
  ++saved_;
  if (saved()) writer_.reset();  // what is written stays as it is
}

void TrainWorkers::write_part(const TrainPart& part) const {
  if (!writer_) throw Error(ErrorCode::peer, "a worker sends what no checkpoint wants");
  writer_->write(part.name, {{part.first_row, part.end_row}, {part.first_column, part.end_column}},
                 std::as_bytes(std::span(part.bytes)));
}

// A worker that was killed says nothing of itself, and no more does its machine.
void TrainWorkers::check_ended() {
  const auto is_cause = [](const WorkerExit& exit) {
    return exit.how == WorkerExit::How::signal || exit.how == WorkerExit::How::machine;
  };
  for (const Worker& worker : workers_)
    if (const std::optional<WorkerExit> exit = worker.link->exit(); exit && is_cause(*exit))
      throw Error(ErrorCode::peer, fmt::format("the worker of {} {}", worker.name(), exit->text()),
                  exit->how == WorkerExit::How::signal && exit->number == 9
                      ? "was there memory for it? The run goes on with `motley train --resume`"
                      : "the run goes on with `motley train --resume`");
}

}  // namespace motley
