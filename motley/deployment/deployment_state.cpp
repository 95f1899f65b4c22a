#include "motley/deployment/deployment_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/plan/served.hpp"
#include "motley/workers/launch.hpp"

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

constexpr double without_end_s = std::numeric_limits<double>::infinity();  // that a device is away

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
    case DeploymentPhase::down: return "down";
    case DeploymentPhase::failed: return "failed";
  }
  return "unknown";
}

DeploymentState::DeploymentState(ServePlan plan, Replan replan, RestartRule restart)
    : replan_(std::move(replan)), restart_(restart), plan_(checked(std::move(plan))), asked_(plan_) {}

std::set<std::string> DeploymentState::lost_devices() const {
  std::set<std::string> devices;
  for (const auto& [device, until_s] : lost_) devices.insert(device);
  return devices;
}

std::optional<double> DeploymentState::returns_s() const {
  std::optional<double> first_s;
  if (phase_ == DeploymentPhase::serving)
    for (const auto& [device, until_s] : lost_)
      if (until_s < without_end_s) first_s = std::min(first_s.value_or(until_s), until_s);
  return first_s;
}

void DeploymentState::loaded() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::loading);
  phase_ = DeploymentPhase::warming_up;
}

void DeploymentState::warmed_up() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::warming_up);
  phase_ = DeploymentPhase::serving;
  has_served_ = true;
  for (const std::string& device : worker_devices(*plan_)) times_lost_.erase(device);
}

void DeploymentState::lost(const WorkerLoss& loss, double now_s) {
  MOTLEY_CHECK(phase_ != DeploymentPhase::failed && phase_ != DeploymentPhase::down);
  if (loss.kv_tokens > 0) return shrink_cache(loss);
  // Of several machines one may lack something: memory, space on its disk.
  const ErrorCode code = loss.cause.code();
  const bool of_one = code == ErrorCode::peer || code == ErrorCode::environment;
  const bool may_pass = has_served_ || (restart_.waits && of_one);
  if (!may_pass || loss.devices.empty()) return fail(loss.cause);
  if (starts_again(loss, now_s)) return take_effect(next_ ? std::exchange(next_, nullptr) : plan_);
  wait_s_ = 0;
  std::set<std::string> lost = lost_devices();
  lost.insert(loss.devices.begin(), loss.devices.end());
  if (next_ && !uses_any(*next_, lost)) return take_effect(std::exchange(next_, nullptr));
  try {
    auto replanned = replan_ ? replan_(*plan_, lost) : std::nullopt;
    if (!replanned) return give_up(loss.cause);
    const auto plan = checked(std::move(*replanned), *plan_);
    if (uses_any(*plan, lost)) throw input_error("the plan uses a device that was lost", "plan without it");
    if (loss.gone) asked_ = plan;
    take_effect(plan);
  } catch (const Error& error) {
    give_up(
        Error(loss.cause.code(), fmt::format("{}; no other plan: {}", loss.cause.what(), error.what()), error.hint()));
  }
}

void DeploymentState::shrink_cache(const WorkerLoss& loss) {
  wait_s_ = 0;
  if (next_) return take_effect(std::exchange(next_, nullptr));
  ServePlan plan = *plan_;
  for (Stage& stage : plan.stages)
    if (std::ranges::count(stage.devices, loss.devices.front()) > 0) {
      if (loss.kv_tokens >= stage.kv_tokens) return fail(loss.cause);  // it would go on for ever
      stage.kv_tokens = loss.kv_tokens;
    }
  plan.predicted = {};  // it was for more
  try {
    const auto smaller = checked(std::move(plan), *plan_);
    if (asked_ == plan_) asked_ = smaller;
    take_effect(smaller);
  } catch (const Error&) {
    give_up(loss.cause);
  }
}

// Counts the deaths. False: a device is lost with them.
bool DeploymentState::starts_again(const WorkerLoss& loss, double now_s) {
  if (loss.gone) return false;
  if (loss.at_once) {
    for (const std::string& device : loss.devices) lose(device, now_s);
    return false;
  }
  std::size_t most = 0;
  for (const std::string& device : loss.devices) {
    std::vector<double>& deaths = deaths_[device];
    std::erase_if(deaths, [&](double at_s) { return at_s < now_s - restart_.window_s; });
    deaths.push_back(now_s);
    most = std::max(most, deaths.size());
    if (std::ssize(deaths) < restart_.deaths) continue;
    lose(device, now_s);
  }
  wait_s_ = most > 1 ? restart_.first_wait_s * std::exp2(static_cast<double>(most) - 2) : 0;
  return std::ranges::none_of(loss.devices, [&](const std::string& device) { return lost_.contains(device); });
}

void DeploymentState::lose(const std::string& device, double now_s) {
  constexpr int most_doublings = 6;
  deaths_.erase(device);
  const int times = times_lost_[device]++;
  lost_[device] = now_s + restart_.away_s * std::exp2(std::min(times, most_doublings));
}

void DeploymentState::return_lost(double now_s, const std::map<std::string, std::string>& out_of_service) {
  for (auto& [device, until_s] : lost_)
    if (out_of_service.contains(device)) until_s = without_end_s;
  const auto returned = std::erase_if(lost_, [&](const auto& device) { return device.second <= now_s; });
  if (returned == 0 || phase_ != DeploymentPhase::serving || plan_ == asked_ || uses_any(*asked_, lost_devices()))
    return;
  next_ = asked_;
  phase_ = DeploymentPhase::pausing;
}

void DeploymentState::change_to(ServePlan plan) {
  if (failure_) throw *failure_;
  asked_ = checked(std::move(plan), *plan_);
  for (const std::string& device : worker_devices(*asked_)) lost_.erase(device);
  wait_s_ = 0;
  if (phase_ == DeploymentPhase::down) return take_effect(asked_);
  next_ = asked_;
  phase_ = DeploymentPhase::pausing;
}

void DeploymentState::paused() {
  MOTLEY_CHECK(phase_ == DeploymentPhase::pausing);
  wait_s_ = 0;
  take_effect(std::exchange(next_, nullptr));
}

void DeploymentState::give_up(const Error& cause) {
  if (!restart_.waits) return fail(cause);
  next_ = nullptr;
  phase_ = DeploymentPhase::down;
}

// While serving, whatever ends a worker is the failure of a peer; before, it is what the worker says.
void DeploymentState::fail(const Error& cause) {
  const bool own = !has_served_ || cause.code() == ErrorCode::internal;
  failure_ = own ? cause : Error(ErrorCode::peer, cause.what(), cause.hint());
  next_ = nullptr;
  phase_ = DeploymentPhase::failed;
}

std::string DeploymentState::fingerprint() const {
  std::string text = fmt::format("{} {} {}\n", name_of(phase_), has_served_, plan_ == asked_);
  for (const auto& plan : {plan_, next_, asked_})
    text += plan ? fmt::format("{}\n", fmt::join(worker_devices(*plan), " ")) : "\n";
  for (const auto& [device, deaths] : deaths_) text += fmt::format("{} {} ", device, deaths.size());
  return text + fmt::format("\n{}", fmt::join(lost_devices(), " "));
}

void DeploymentState::take_effect(std::shared_ptr<const ServePlan> plan) {
  plan_ = std::move(plan);
  ++epoch_;
  next_ = nullptr;
  phase_ = DeploymentPhase::loading;
}

}  // namespace motley
