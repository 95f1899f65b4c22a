#include "motley/agent/local_workers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double stopped_s = 2;  // that a worker may be, until it is ended

// It is stopped (SIGSTOP): the processor time that it has had; one that goes on now and then gets more.
std::optional<std::int64_t> stopped_at(int process) {
  std::ifstream in(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(in, text);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  constexpr int before_times = 10;  // fields, from the parent's process id on (proc(5))
  std::string state, ignored;
  std::int64_t user = 0, kernel = 0;
  fields >> state;
  for (int i = 0; i < before_times; ++i) fields >> ignored;
  fields >> user >> kernel;
  return fields && state == "T" ? std::optional(user + kernel) : std::nullopt;
}

// What the process says is of interest only where it fails before it has called the driver.
std::string last_words_of(WorkerProcess& process) {
  std::string words;
  try {
    process.flush();
    for (const Message& message : process.receive())
      if (const auto* failure = std::get_if<Failure>(&message)) words = failure->message;
  } catch (const Error&) {
    // How it ends says enough.
  }
  return words;
}

}  // namespace

void LocalWorkers::start(const std::string& device, std::uint64_t number) {
  end(device);
  waiting_[device] = {.number = number};
  look_at_waiting();
}

void LocalWorkers::end(const std::string& device) {
  waiting_.erase(device);
  if (auto found = running_.extract(device)) begin_end(device, std::move(found.mapped()), options_.grace_s);
}

void LocalWorkers::kill_all() {
  waiting_.clear();
  for (auto& [device, worker] : std::exchange(running_, {})) begin_end(device, std::move(worker), 0);
  for (Ending& ending : ending_) ending.kill_at = std::min(ending.kill_at, Clock::now());
  look_at_ending();
}

void LocalWorkers::end_all() {
  kill_all();
  constexpr int look_every_ms = 20;
  while (std::ranges::any_of(ending_, [](const Ending& ending) { return !ending.given_up; })) {
    std::vector<pollfd> events;
    add_events(events);
    ::poll(events.data(), events.size(), look_every_ms);
    look_at_ending();
  }
  for (Ending& ending : ending_) ending.process->leave_behind();
  ending_.clear();
}

void LocalWorkers::begin_end(const std::string& device, Running running, double grace_s) {
  ending_.push_back({.device = device,
                     .process = std::move(running.process),
                     .kill_at = deadline_in(grace_s),
                     .give_up_at = deadline_in(grace_s + options_.patience_s)});
}

void LocalWorkers::look() {
  look_at_gpus();
  look_at_running();
  look_at_ending();
  look_at_waiting();
}

void LocalWorkers::add_events(std::vector<pollfd>& waiting) const {
  const auto add = [&](const WorkerProcess& process) {
    std::ranges::copy(process.events(), std::back_inserter(waiting));
  };
  for (const auto& [device, worker] : running_) add(*worker.process);
  for (const Ending& ending : ending_)
    if (!ending.given_up) add(*ending.process);
}

void LocalWorkers::note_end(const std::string& device, int process) {
  past_[device].insert(static_cast<unsigned>(process));
  gpus_.look_soon();
}

void LocalWorkers::look_at_running() {
  std::vector<std::string> devices;
  for (const auto& [device, worker] : running_) devices.push_back(device);
  for (const std::string& device : devices) {
    Running& worker = running_.at(device);
    if (const std::string words = last_words_of(*worker.process); !words.empty()) worker.last_words = words;
    const auto exit = worker.process->exit();
    if (!exit) {
      end_if_stopped(device, worker);
      continue;
    }
    const bool killed = exit->how == WorkerExit::How::signal;
    options_.say("worker", fmt::format("{} {}{}", device, exit->text(),
                                       worker.last_words.empty() ? "" : ": " + worker.last_words));
    options_.tell(
        WorkerEnded{device, worker.number, killed ? exit->number : 0, killed ? 0 : exit->number, worker.last_words});
    note_end(device, worker.process->process());
    running_.erase(device);
  }
}

// Before it has called the driver, no other process would notice.
void LocalWorkers::end_if_stopped(const std::string& device, Running& worker) const {
  const auto at = stopped_at(worker.process->process());
  if (at != std::exchange(worker.stopped_at, at)) worker.stopped_since = Clock::now();
  if (!at || seconds_since(worker.stopped_since) < stopped_s) return;
  options_.say("worker", fmt::format("{} has been stopped for {:.0f} s: it is ended", device, stopped_s));
  worker.process->kill();
}

// A process that is in a call to a device that is lost cannot be killed: nothing else can use the device either.
void LocalWorkers::look_at_ending() {
  std::set<std::string> changed;
  std::erase_if(ending_, [&](Ending& ending) {
    last_words_of(*ending.process);
    if (ending.process->exit()) {
      note_end(ending.device, ending.process->process());
      if (ending.given_up) changed.insert(ending.device);
      return true;
    }
    if (seconds_until(ending.kill_at) <= 0 && !std::exchange(ending.was_killed, true)) ending.process->kill();
    if (seconds_until(ending.give_up_at) <= 0 && !std::exchange(ending.given_up, true)) changed.insert(ending.device);
    return false;
  });
  for (const std::string& device : changed) tell_state(device);
}

void LocalWorkers::look_at_gpus() {
  for (const std::string& objection : gpus_.objections()) options_.say("gpu", objection);
  for (const auto& [device, cause] : gpus_.changes()) {
    broken_[device] = cause;
    tell_state(device);
  }
}

void LocalWorkers::look_at_waiting() {
  std::vector<std::string> devices;
  for (const auto& [device, waiting] : waiting_) devices.push_back(device);
  for (const std::string& device : devices) {
    Waiting& waiting = waiting_.at(device);
    const std::uint64_t number = waiting.number;
    const std::string objection = out_of_service(device);
    if (objection.empty() && !may_start(device, waiting)) continue;
    waiting_.erase(device);
    if (objection.empty())
      start_process(device, number);
    else
      cannot_start(device, number, "out of service: " + objection);
  }
}

// An earlier process has ended, and its memory is back or will not be.
bool LocalWorkers::may_start(const std::string& device, Waiting& waiting) {
  if (std::ranges::find(ending_, device, &Ending::device) != ending_.end()) return false;
  if (!std::exchange(waiting.awaits_release, true)) gpus_.await_release(device, past_[device]);
  const std::optional<std::string> not_come = gpus_.released(device);
  if (!not_come) return false;
  if (!not_come->empty())
    options_.say("memory", fmt::format("{}: {}: the worker starts with what there is", device, *not_come));
  past_.erase(device);
  return true;
}

void LocalWorkers::start_process(const std::string& device, std::uint64_t number) {
  try {
    auto process = std::make_unique<WorkerProcess>(options_.program, options_.variables(device));
    process->send(encode(options_.call(device, number)));
    options_.tell(WorkerStarted{device, number, process->process()});
    options_.say("worker", fmt::format("{} starts", device));
    running_[device] = {.number = number, .process = std::move(process)};
  } catch (const Error& error) {
    cannot_start(device, number, error.what());
  }
}

void LocalWorkers::cannot_start(const std::string& device, std::uint64_t number, const std::string& cause) const {
  options_.say("worker", fmt::format("{} cannot start: {}", device, cause));
  options_.tell(WorkerEnded{device, number, 0, static_cast<int>(ErrorCode::peer), cause});
}

// ---- out of service ----

std::string LocalWorkers::out_of_service(const std::string& device) const {
  for (const Ending& ending : ending_)
    if (ending.given_up && ending.device == device)
      return fmt::format("process {} cannot be ended, {:.0f} s after it was killed", ending.process->process(),
                         options_.patience_s);
  const auto broken = broken_.find(device);
  return broken == broken_.end() ? std::string() : broken->second;
}

void LocalWorkers::tell_state(const std::string& device) {
  const std::string cause = out_of_service(device);
  if (cause == std::exchange(told_[device], cause)) return;
  options_.say("device", cause.empty() ? fmt::format("{} is in service again", device)
                                       : fmt::format("{} is out of service: {}", device, cause));
  options_.tell(DeviceState{device, cause});
}

void LocalWorkers::tell_again() {
  for (const auto& [device, cause] : told_)
    if (!cause.empty()) options_.tell(DeviceState{device, cause});
}

}  // namespace motley
