#include "motley/deployment/deployment_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/plan/served.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

std::shared_ptr<const ServePlan> checked(ServePlan plan) {
  if (const auto violations = verify(plan); !violations.empty())
    throw input_error(fmt::format("the plan cannot run: {}: {}", violations[0].place, violations[0].what),
                      violations[0].hint);
  if (const auto reasons = not_served(plan); !reasons.empty())
    throw input_error(fmt::format("the plan cannot be served: {}: {}", reasons[0].place, reasons[0].what),
                      reasons[0].hint);
  return std::make_shared<const ServePlan>(std::move(plan));
}

// Requests keep their tokens over a change: both plans must mean the same by them.
std::shared_ptr<const ServePlan> checked(ServePlan plan, const ServePlan& before) {
  auto next = checked(std::move(plan));
  if (!(next->model.arch == before.model.arch))
    throw input_error(fmt::format("the plan is for {}, and {} is served", next->model.name, before.model.name),
                      "give a plan for the same model");
  return next;
}

bool uses_any(const ServePlan& plan, const std::set<std::string>& devices) {
  return std::ranges::any_of(worker_devices(plan), [&](const std::string& device) { return devices.contains(device); });
}

}  // namespace

std::string_view name_of(DeploymentPhase phase) {
  switch (phase) {
    case DeploymentPhase::loading: return "loading";
    case DeploymentPhase::warming_up: return "warming up";
    case DeploymentPhase::serving: return "serving";
    case DeploymentPhase::pausing: return "pausing";
    case DeploymentPhase::failed: return "failed";
  }
  return "unknown";
}

DeploymentState::DeploymentState(ServePlan plan, Replan replan)
    : replan_(std::move(replan)), plan_(checked(std::move(plan))) {}

void DeploymentState::loaded() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::loading);
  phase_ = DeploymentPhase::warming_up;
}

void DeploymentState::warmed_up() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::warming_up);
  phase_ = DeploymentPhase::serving;
  has_served_ = true;
}

void DeploymentState::lost(const WorkerLoss& loss) {
  MOTLEY_CHECK(phase_ != DeploymentPhase::failed);
  lost_.insert(loss.devices.begin(), loss.devices.end());
  if (!has_served_ || loss.devices.empty()) return fail(loss.cause);
  if (next_ && !uses_any(*next_, lost_)) return take_effect(std::exchange(next_, nullptr));
  try {
    auto replanned = replan_ ? replan_(*plan_, lost_, loss.cause) : std::nullopt;
    if (!replanned) return fail(loss.cause);
    const auto plan = checked(std::move(*replanned), *plan_);
    if (uses_any(*plan, lost_)) throw input_error("the plan uses a device that was lost", "plan without it");
    take_effect(plan);
  } catch (const Error& error) {
    fail(Error(loss.cause.code(), fmt::format("{}; no other plan: {}", loss.cause.what(), error.what()), error.hint()));
  }
}

void DeploymentState::change_to(ServePlan plan) {
  if (failure_) throw *failure_;
  next_ = checked(std::move(plan), *plan_);
  for (const std::string& device : worker_devices(*next_)) lost_.erase(device);
  phase_ = DeploymentPhase::pausing;
}

void DeploymentState::paused() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::pausing);
  take_effect(std::exchange(next_, nullptr));
}

// While serving, whatever ends a worker is the failure of a peer; before, it is what the worker says.
void DeploymentState::fail(const Error& cause) {
  const bool own = !has_served_ || cause.code() == ErrorCode::internal;
  failure_ = own ? cause : Error(ErrorCode::peer, cause.what(), cause.hint());
  next_ = nullptr;
  phase_ = DeploymentPhase::failed;
}

void DeploymentState::take_effect(std::shared_ptr<const ServePlan> plan) {
  plan_ = std::move(plan);
  ++epoch_;
  next_ = nullptr;
  phase_ = DeploymentPhase::loading;
}

}  // namespace motley
