#include "motley/workers/worker_preparation.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "motley/base/error.hpp"
#include "motley/workers/launch.hpp"

namespace motley {

WorkerPreparation::WorkerPreparation(Fleet& fleet, const ServePlan& plan, const std::set<std::string>& running,
                                     const WorkerReads& reads)
    : plan_(plan) {
  std::vector<std::string> starting, staying;
  for (const std::string& device : worker_devices(plan))
    (running.contains(device) ? staying : starting).push_back(device);
  start_ = fleet.begin(starting, staying, reads);
}

bool WorkerPreparation::done() {
  Workers come;
  const bool all_there = start_->take(come);
  for (Worker& worker : come) {
    ask_to_preload(worker, plan_);
    workers_.push_back(std::move(worker));
    heard_ = Clock::now();
  }
  check_running(workers_, worker_devices(plan_));
  for (const Worker& worker : workers_) take_messages(worker);
  if (all_there && loaded_.size() == workers_.size()) return true;
  if (all_there && seconds_since(heard_) > start_patience_s)
    throw Error(ErrorCode::peer, fmt::format("no worker has shown anything for {:.0f} s", start_patience_s));
  return false;
}

void WorkerPreparation::take_messages(const Worker& worker) {
  worker.handle->flush();
  for (const Message& message : worker.handle->receive()) {
    heard_ = Clock::now();
    if (std::holds_alternative<Preloaded>(message)) loaded_.insert(worker.device);
    if (const auto* failure = std::get_if<Failure>(&message))
      throw Error(ErrorCode::peer, fmt::format("{} cannot load: {}", worker.device, failure->message), failure->hint);
  }
  if (worker.handle->ended()) throw Error(ErrorCode::peer, fmt::format("the worker of {} has ended", worker.device));
}

Workers WorkerPreparation::take() {
  start_.reset();
  return std::exchange(workers_, {});
}

}  // namespace motley
