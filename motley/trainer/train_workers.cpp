#include "motley/trainer/train_workers.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <variant>

#include "motley/checkpoint/manifest.hpp"
#include "motley/trainer/layout/layout.hpp"

namespace motley {
namespace {

constexpr double grace_s = 0.5;
constexpr double look_every_s = 0.1;  // whether a stop was asked for
constexpr double cause_s = 1;         // a worker that is lost is heard of after those that miss it

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
  return start_workers(fleet, train_devices(plan), reads_of(plan, options), none, options.stopped);
}

}  // namespace

bool reads_states(const TrainPlan& plan, std::int64_t updates) {
  return updates > 0 && state_kinds(training_of(plan.workload)).size() > 1;
}

TrainWorkers::TrainWorkers(const TrainPlan& plan, Fleet& fleet, const TrainWorkersOptions& options)
    : devices_(train_devices(plan)),
      workers_(start(plan, fleet, options)),
      writes_here_(fleet.is_here()),
      files_(state_files(plan.model.arch, training_of(plan.workload))),
      stopped_(options.stopped) {
  TrainLaunch launch{.plan_json = to_json(write(plan)), .updates = options.updates, .workers = {}};
  for (Worker& worker : workers_) {
    const TrainPlace place = place_of(plan, worker.device);
    replica_of_.push_back(place.replica);
    first_.push_back(place.stage == 0);
    last_.push_back(place.stage + 1 == plan.replicas[place.replica].stages.size());
    worker.stage = fmt::format("r{}/s{}", place.replica, place.stage);
    worker.rank = place.rank;
    launch.workers.push_back(worker.at);
  }
  const std::string message = encode(launch);
  for (const Worker& worker : workers_) worker.link->send(message);
  try {
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
  if (!writes_here_) writer_.emplace(folder, files_);
  const std::string message = encode(TrainSave{writes_here_ ? folder.string() : std::string(), when});
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
