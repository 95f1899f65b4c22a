#include "motley/workers/worker_set.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/workers/launch.hpp"

namespace motley {

WorkerSet::WorkerSet(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch, Workers workers,
                     WorkerSetOptions options)
    : plan_(std::move(plan)),
      epoch_(epoch),
      options_(std::move(options)),
      watch_(std::move(workers),
             {.silence_s = options_.silence_s,
              .progress = [this](const auto& phase, double part) { report_progress(phase, part); }}),
      is_ready_(watch_.size()),
      last_answer_(watch_.size()),
      suspects_(watch_.size()),
      kv_tokens_(watch_.size()) {
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    const Worker& worker = watch_[i];
    first_worker_.emplace(worker.stage, i);
    status_.push_back({.device = worker.device,
                       .stage = worker.stage,
                       .rank = worker.rank,
                       .process = worker.handle->process(),
                       .alive = true,
                       .allocated = {}});
  }
}

void WorkerSet::end() {
  watch_.end();
  const std::lock_guard lock(mutex_);
  for (WorkerStatus& status : status_) status.alive = false;
}

Workers WorkerSet::take_workers() {
  const std::lock_guard lock(mutex_);
  for (WorkerStatus& status : status_) status.alive = false;
  return watch_.take_workers();
}

void WorkerSet::report(const std::string& phase, const std::string& detail) const {
  if (options_.report) options_.report(phase, detail);
}

std::vector<WorkerStatus> WorkerSet::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::map<std::string, std::uint64_t> WorkerSet::cache_epochs() const {
  std::map<std::string, std::uint64_t> epochs;
  for (const WorkerStatus& worker : status()) {
    std::uint64_t& epoch = epochs[worker.stage];
    epoch = std::max(epoch, worker.allocated.cache_epoch);
  }
  return epochs;
}

void WorkerSet::wait(int wake, double most_s) {
  double patience_s = most_s;
  for (const auto& [id, step] : unanswered_) patience_s = std::min(patience_s, step.limit_s - seconds_since(step.sent));
  watch_.wait(wake, patience_s);
}

std::optional<WorkerLoss> WorkerSet::receive(const OnResult& on_result) {
  const auto lost = watch_.receive([&](std::size_t i, const Message& message) {
    std::visit([&](const auto& m) { take(i, m, on_result); }, message);
  });
  if (!lost) {
    if (auto loss = watch_.silent()) return loss;
    if (auto loss = stalled()) return loss;
    return overdue();
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < status_.size(); ++i) status_[i].alive = !watch_[i].handle->exit();
  return describe(*lost);
}

// ---- messages ----

// Messages that only the driver sends.
template <class M>
void WorkerSet::take(std::size_t, const M&, const OnResult&) {
  throw Error(ErrorCode::peer, "a message that workers do not send");
}

void WorkerSet::take(std::size_t i, const Interrupted& interrupted, const OnResult&) {
  if (interrupted.epoch != epoch_) return;
  const bool short_of_memory = interrupted.kv_tokens > 0;
  watch_.blame(i, Error(short_of_memory ? ErrorCode::environment : ErrorCode::peer, interrupted.message));
  kv_tokens_[i] = interrupted.kv_tokens;
  suspects_[i] = interrupted.suspects;
}

void WorkerSet::take(std::size_t i, const Preloaded&, const OnResult&) { preloading_.erase(i); }

void WorkerSet::take(std::size_t i, const StandbyHeld& held, const OnResult&) {
  if (held.epoch != epoch_) return;
  const std::lock_guard lock(mutex_);
  status_[i].standby_bytes = held.bytes;
}

void WorkerSet::report_progress(const std::string& phase, double fraction) {
  constexpr double worth_a_line = 0.1;
  if (phase == reported_phase_ && fraction < reported_fraction_ + worth_a_line) return;
  reported_phase_ = phase;
  reported_fraction_ = fraction;
  report(phase, fmt::format("{:.0f} %", 100 * fraction));
}

void WorkerSet::take(std::size_t i, const Ready& ready_now, const OnResult&) {
  if (ready_now.epoch < epoch_) return;
  if (is_ready_[i] || ready_now.epoch > epoch_) throw Error(ErrorCode::peer, "an unexpected message");
  std::int64_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    status_[i].allocated = ready_now;
    for (const WorkerStatus& status : status_)
      bytes += status.allocated.weight_bytes + status.allocated.kv_bytes + status.allocated.activation_bytes;
  }
  is_ready_[i] = true;
  if (ready()) report("memory", human_bytes(static_cast<double>(bytes)));
}

void WorkerSet::take(std::size_t i, const StepResult& result, const OnResult& on_result) {
  if (!is_ready_[i]) return;  // of an earlier epoch
  if (result.step <= last_answer_[i])
    throw Error(ErrorCode::peer, fmt::format("it answered step {} after step {}", result.step, last_answer_[i]));
  last_answer_[i] = result.step;
  {
    const std::lock_guard lock(mutex_);
    WorkerStatus& status = status_[i];
    status.busy_s += result.compute_s;
    status.waited_s += result.wait_s;
    ++status.steps;
  }
  const auto sent = unanswered_.find(result.step);
  if (sent == unanswered_.end()) return;
  sent->second.answers[i] = Clock::now();
  note(i, result, sent->second);
  if (sent->second.answering_worker != i) return;
  const double seconds = seconds_since(sent->second.sent);
  StepSeconds measured = std::move(sent->second.took);
  if (sent->second.alone) measured.alone_s = seconds;
  slowest_step_s_ = std::max(slowest_step_s_, seconds);
  unanswered_tokens_ -= sent->second.tokens;
  unanswered_.erase(sent);
  on_result(result, measured);
}

void WorkerSet::note(std::size_t worker, const StepResult& result, UnansweredStep& step) const {
  const std::vector<Hop>& path = plan_->routes[step.route].path;
  step.took.device_s[watch_[worker].device] = result.compute_s;
  for (std::size_t hop = 0; hop < step.took.stage_s.size(); ++hop)
    if (first_worker_.at(path[hop].stage) == worker) step.took.stage_s[hop] = result.compute_s + result.stage_wait_s;
}

// ---- steps ----

void WorkerSet::warmed_up() { warm_up_step_s_ = slowest_step_s_; }

// They all get the same: what their stages do not need is small next to the hidden states.
void WorkerSet::send(const Step& step) {
  std::vector<Hop> path = plan_->routes[step.route].path;
  path.resize(stages_passed(step, path.size()));
  const Instant sent = Clock::now();
  const std::string message = encode(step);
  for (const Hop& hop : path) {
    const std::size_t first = first_worker_.at(hop.stage);
    for (std::size_t rank = 0; rank < plan_->stage(hop.stage).devices.size(); ++rank)
      watch_[first + rank].handle->send(message);
  }
  std::int64_t tokens = 0;
  for (const StepSequence& sequence : step.sequences) tokens += sequence.count;
  unanswered_tokens_ += tokens;
  for (auto& [id, other] : unanswered_) other.alone = false;
  unanswered_[step.step] = {.answering_worker = first_worker_.at(path.back().stage),
                            .route = step.route,
                            .tokens = tokens,
                            .sent = sent,
                            .limit_s = step_limit_s(),
                            .alone = unanswered_.empty(),
                            .took = {.stage_s = std::vector<double>(path.size(), 0.0)}};
}

void WorkerSet::preload(const ServePlan& next) {
  const std::vector<std::string> devices = worker_devices(next);
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    if (std::ranges::count(devices, watch_[i].device) == 0) continue;
    ask_to_preload(watch_[i], next);
    preloading_.insert(i);
  }
}

void WorkerSet::load_standby() {
  for (const Worker& worker : watch_.workers())
    if (!plan_->stage(worker.stage).standby_weights.empty()) worker.handle->send(encode(LoadStandby{epoch_}));
}

std::vector<StepAtWork> WorkerSet::at_work() const {
  std::vector<StepAtWork> steps;
  for (std::size_t i = 0; i < watch_.size(); ++i) {
    const Activity& activity = watch_.seen(i).activity;
    if (activity.epoch != epoch_ || activity.doing != Doing::computing || last_answer_[i] >= activity.step) continue;
    steps.push_back({watch_[i].device, activity.step, activity.for_s});
  }
  return steps;
}

// The first step pays for memory that was never touched. Later a step may take as long as its tokens would one by
// one, and so may those before it.
double WorkerSet::step_limit_s() const {
  if (!warm_up_step_s_) return 6 * options_.watchdog_s;
  return std::max(
      {options_.watchdog_s, 10 * slowest_step_s_, 2 * *warm_up_step_s_ * static_cast<double>(unanswered_tokens_)});
}

std::optional<WorkerLoss> WorkerSet::overdue() const {
  for (const auto& [id, step] : unanswered_)
    if (const double elapsed_s = seconds_since(step.sent); elapsed_s > step.limit_s) return hang(id, step, elapsed_s);
  return std::nullopt;
}

// A worker waits for rows that another has sent long ago, or that it cannot get rid of.
std::optional<WorkerLoss> WorkerSet::stalled() const {
  for (std::size_t to = 0; to < watch_.size(); ++to) {
    if (!has_stalled(to)) continue;
    const Activity& waits = watch_.seen(to).activity;
    const auto from = static_cast<std::size_t>(waits.peer);
    return lost_link(from, to,
                     fmt::format("step {} has not come through for {:.1f} s", waits.step, watch_.seen(to).for_s()));
  }
  return std::nullopt;
}

bool WorkerSet::has_stalled(std::size_t receiver) const {
  const Activity& waits = watch_.seen(receiver).activity;
  if (waits.epoch != epoch_ || waits.doing != Doing::receiving) return false;
  const auto step = unanswered_.find(waits.step);
  if (step == unanswered_.end() || step->second.answers.contains(receiver)) return false;
  if (waits.peer < 0 || waits.peer >= static_cast<std::int32_t>(watch_.size())) return false;
  const auto from = static_cast<std::size_t>(waits.peer);
  // What may be on its way: all rows of the step, and of those that were sent before it.
  const PathSpeed path = plan_->cluster.link(plan_->cluster.find_device(watch_[from].device),
                                             plan_->cluster.find_device(watch_[receiver].device));
  constexpr double row_element_bytes = 4, patience = 4;
  const double rows_bytes = static_cast<double>(unanswered_tokens_ * plan_->model.arch.hidden) * row_element_bytes;
  const double limit_s = options_.stall_s + patience * path.seconds(rows_bytes);
  if (watch_.seen(receiver).for_s() <= limit_s) return false;
  const auto sent = step->second.answers.find(from);
  if (sent != step->second.answers.end()) return seconds_since(sent->second) > limit_s;
  const Activity& sends = watch_.seen(from).activity;
  return sends.epoch == epoch_ && sends.step == waits.step && sends.doing == Doing::sending &&
         sends.peer == static_cast<std::int32_t>(receiver) && watch_.seen(from).for_s() > limit_s;
}

// Both ends live. The one with fewer layers is given up: less moves.
WorkerLoss WorkerSet::lost_link(std::size_t from, std::size_t to, const std::string& how) const {
  const auto layers = [&](std::size_t i) { return plan_->stage(watch_[i].stage).layers.size(); };
  return {.cause = Error(ErrorCode::peer, fmt::format("the link from {} to {} is lost: {}", watch_[from].device,
                                                      watch_[to].device, how)),
          .devices = {watch_[layers(from) < layers(to) ? from : to].device},
          .at_once = true};
}

// Those behind a worker that hangs do not answer either: the first stage without an answer is to blame.
WorkerLoss WorkerSet::hang(std::uint64_t id, const UnansweredStep& step, double elapsed_s) const {
  std::string silent;
  std::vector<std::string> devices;
  for (const Hop& hop : plan_->routes[step.route].path) {
    const std::size_t first = first_worker_.at(hop.stage);
    for (std::size_t i = first; i < first + plan_->stage(hop.stage).devices.size(); ++i) {
      if (last_answer_[i] >= id) continue;
      silent += (silent.empty() ? "" : ", ") + watch_[i].name();
      devices.push_back(watch_[i].device);
    }
    if (!silent.empty()) break;
  }
  return {Error(ErrorCode::peer, fmt::format("{} did not answer step {} within {:.1f} s", silent, id, elapsed_s)),
          std::move(devices)};
}

// ---- failure ----

// Where a worker cannot reach another that lives, and none has died, it is what lies between them.
std::optional<WorkerLoss> WorkerSet::link_of_interruption(std::size_t i) const {
  for (const std::int32_t place : suspects_[i]) {
    const auto from = static_cast<std::size_t>(place);
    if (place < 0 || from >= watch_.size() || from == i || watch_[from].handle->ended()) continue;
    return lost_link(from, i, watch_.said(i) ? watch_.said(i)->what() : "");
  }
  return std::nullopt;
}

WorkerLoss WorkerSet::describe(const WorkerWatch::Lost& lost) const {
  for (std::size_t i = 0; !lost.by_itself && i < suspects_.size(); ++i)
    if (auto link = link_of_interruption(i)) return *link;
  WorkerLoss loss = watch_.describe(lost.worker);
  loss.kv_tokens = kv_tokens_[lost.worker];
  const auto exit = watch_[lost.worker].handle->exit();
  if (exit && exit->how == WorkerExit::How::signal)
    loss.cause = Error(loss.cause.code(), loss.cause.what(), loss.cause.hint() + "; start again to load all workers");
  return loss;
}

}  // namespace motley
