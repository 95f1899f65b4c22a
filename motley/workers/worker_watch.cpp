#include "motley/workers/worker_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace motley {
namespace {

constexpr double worker_grace_s = 1;  // to leave by itself once its connection has ended
constexpr double missed = 1.0 / 3;    // of the silence that counts, between two looks: the driver did not listen

}  // namespace

WorkerWatch::WorkerWatch(Workers workers, WorkerWatchOptions options)
    : options_(std::move(options)),
      workers_(std::move(workers)),
      progress_(workers_.size()),
      said_(workers_.size()),
      heard_(workers_.size()),
      seen_(workers_.size()) {}

WorkerWatch::~WorkerWatch() { end(); }

void WorkerWatch::end() { end_workers(workers_, worker_grace_s); }

void WorkerWatch::send(const Message& message) const {
  const std::string bytes = encode(message);
  for (const Worker& worker : workers_) worker.handle->send(bytes);
}

void WorkerWatch::wait(int wake, double most_s) {
  double patience_s = std::min(most_s, missed / 2 * options_.silence_s);
  for (std::size_t i = 0; i < workers_.size(); ++i) patience_s = std::min(patience_s, silence_left_s(i));
  to_read_ = wait_for_workers(workers_, wake, patience_s);
}

std::optional<WorkerWatch::Lost> WorkerWatch::receive(const Take& take) {
  if (seconds_since(looked_) > missed * options_.silence_s) listening_ = Clock::now();
  looked_ = Clock::now();
  bool trouble = false;
  for (const std::size_t i : std::exchange(to_read_, {})) trouble = !take_messages(i, take) || trouble;
  if (!trouble) return std::nullopt;
  return find_cause(take);
}

// False: this worker is lost.
bool WorkerWatch::take_messages(std::size_t i, const Take& take) {
  WorkerHandle& handle = *workers_[i].handle;
  try {
    for (Message& message : handle.receive()) {
      if (heard_[i]) heard_[i] = Clock::now();
      if (const auto* alive = std::get_if<Alive>(&message)) {
        heard_[i] = Clock::now();
        const bool goes_on = alive->activity.processor_s != seen_[i].activity.processor_s;
        seen_[i] = {alive->activity, *heard_[i], goes_on ? *heard_[i] : seen_[i].went_on};
      } else if (auto* failure = std::get_if<Failure>(&message)) {
        blame(i, error_of(*failure));
      } else if (auto* progress = std::get_if<Progress>(&message)) {
        progress_[i] = std::move(*progress);
        double sum = 0;
        for (const Progress& p : progress_) sum += p.phase == progress_[i].phase ? p.fraction : 0;
        if (options_.progress) options_.progress(progress_[i].phase, sum / static_cast<double>(progress_.size()));
      } else {
        take(i, message);
      }
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer) throw;
    blame(i, error);
  }
  return !said_[i] && !handle.ended() && !handle.exit();
}

double WorkerWatch::silence_left_s(std::size_t i) const {
  const double limit_s = heard_[i] ? options_.silence_s : options_.start_s;
  return limit_s - seconds_since(std::max(heard_[i].value_or(start_), listening_));
}

std::optional<WorkerLoss> WorkerWatch::silent() const {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (silence_left_s(i) < 0)
      return WorkerLoss{Error(ErrorCode::peer, fmt::format("{} has been silent for {:.1f} s", workers_[i].name(),
                                                           seconds_since(heard_[i].value_or(start_)))),
                        {workers_[i].device}};
  return std::nullopt;
}

// When one worker dies, its neighbours soon report that their connections broke. Looks for the one that did not fail
// because of another: killed, or with an error of its own. Among those that only name a peer's failure, one that has
// ended comes first: it had a reason that those who go on did not have.
WorkerWatch::Lost WorkerWatch::find_cause(const Take& take) {
  const Instant first_seen = Clock::now();
  for (;;) {
    std::optional<std::size_t> consequence, ended;
    const bool settled = seconds_since(first_seen) > options_.settle_s;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (take_messages(i, take)) continue;
      const auto exit = workers_[i].handle->exit();
      const bool killed = exit && exit->how == WorkerExit::How::signal;
      // The connection to a remote worker may end before its agent reports how the worker ended.
      const bool left_silently = exit && !said_[i] && exit->number != static_cast<int>(ErrorCode::peer) &&
                                 (settled || exit->how != WorkerExit::How::unknown);
      const bool own_error = said_[i] && said_[i]->code() != ErrorCode::peer;
      if (killed || left_silently || own_error) return {i};
      if (!consequence) consequence = i;
      if (!ended && (exit || workers_[i].handle->ended())) ended = i;
    }
    if (settled) return {ended.value_or(*consequence), false};
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Where its machine is gone, all workers on machines that are gone.
WorkerLoss WorkerWatch::describe(std::size_t i) const {
  const auto exit = workers_[i].handle->exit();
  const std::string name = workers_[i].name();
  WorkerLoss loss{Error(ErrorCode::peer, fmt::format("{} {}", name, exit.value_or(WorkerExit{}).text())),
                  {workers_[i].device}};
  if (exit && exit->how == WorkerExit::How::signal) {
    loss.cause = Error(ErrorCode::peer, loss.cause.what(),
                       "if it was not killed on purpose, the machine may have run out of memory (see `dmesg`)");
  } else if (exit && exit->how == WorkerExit::How::machine) {
    loss.gone = true;
    loss.devices.clear();
    for (const Worker& worker : workers_)
      if (const auto other = worker.handle->exit(); other && other->how == WorkerExit::How::machine)
        loss.devices.push_back(worker.device);
  } else if (said_[i]) {
    loss.cause = Error(said_[i]->code(), fmt::format("{}: {}", name, said_[i]->what()), said_[i]->hint());
  }
  return loss;
}

}  // namespace motley
