#include "motley/workers/worker_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

constexpr double worker_grace_s = 1;  // to leave by itself once its connection has ended
constexpr double settle_s = 0.25;     // in which the cause of a failure is told from its consequences

ErrorCode code_from(std::int32_t number) {
  for (const ErrorCode code : {ErrorCode::negative, ErrorCode::input, ErrorCode::environment, ErrorCode::limit,
                               ErrorCode::peer, ErrorCode::interrupted})
    if (static_cast<std::int32_t>(code) == number) return code;
  return ErrorCode::internal;
}

}  // namespace

WorkerSet::WorkerSet(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch, Workers workers,
                     WorkerSetOptions options)
    : plan_(std::move(plan)),
      epoch_(epoch),
      options_(std::move(options)),
      workers_(std::move(workers)),
      progress_(workers_.size()),
      is_ready_(workers_.size()),
      reported_(workers_.size()),
      last_answer_(workers_.size()),
      heard_(workers_.size()),
      seen_(workers_.size()),
      suspects_(workers_.size()),
      kv_tokens_(workers_.size()) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    first_worker_.emplace(worker.stage, i);
    status_.push_back({.device = worker.device,
                       .stage = worker.stage,
                       .rank = worker.rank,
                       .process = worker.link->process(),
                       .alive = true,
                       .allocated = {}});
  }
}

WorkerSet::~WorkerSet() { end(); }

void WorkerSet::end() {
  end_workers(workers_, worker_grace_s);
  const std::lock_guard lock(mutex_);
  for (WorkerStatus& status : status_) status.alive = false;
}

Workers WorkerSet::take_workers() {
  const std::lock_guard lock(mutex_);
  for (WorkerStatus& status : status_) status.alive = false;
  return std::exchange(workers_, {});
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
  for (const auto& heard : heard_)
    if (heard) patience_s = std::min(patience_s, options_.silence_s - seconds_since(*heard));
  stirred_ = wait_for_workers(workers_, wake, patience_s);
}

std::optional<WorkerLoss> WorkerSet::receive(const OnResult& on_result) {
  bool trouble = false;
  for (const std::size_t i : stirred_) trouble = !take_messages(i, on_result) || trouble;
  stirred_.clear();
  if (!trouble) {
    if (auto loss = silent()) return loss;
    if (auto loss = stalled()) return loss;
    return overdue();
  }
  WorkerLoss loss = find_cause(on_result);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < workers_.size(); ++i) status_[i].alive = !workers_[i].link->exit();
  return loss;
}

// ---- messages ----

// False: this worker is lost.
bool WorkerSet::take_messages(std::size_t i, const OnResult& on_result) {
  WorkerLink& link = *workers_[i].link;
  try {
    for (const Message& message : link.receive()) {
      if (heard_[i]) heard_[i] = Clock::now();
      std::visit([&](const auto& m) { take(i, m, on_result); }, message);
    }
  } catch (const Error& error) {
    reported_[i] = error;
  }
  return !reported_[i] && !link.ended() && !link.exit();
}

// Messages that only the driver sends.
template <class M>
void WorkerSet::take(std::size_t, const M&, const OnResult&) {
  throw Error(ErrorCode::peer, "a message that workers do not send");
}

void WorkerSet::take(std::size_t i, const Failure& failure, const OnResult&) {
  reported_[i] = Error(code_from(failure.code), failure.message, failure.hint);
}

void WorkerSet::take(std::size_t i, const Interrupted& interrupted, const OnResult&) {
  if (interrupted.epoch != epoch_) return;
  const bool short_of_memory = interrupted.kv_tokens > 0;
  reported_[i] = Error(short_of_memory ? ErrorCode::environment : ErrorCode::peer, interrupted.message);
  kv_tokens_[i] = interrupted.kv_tokens;
  suspects_[i] = interrupted.suspects;
}

void WorkerSet::take(std::size_t i, const Alive& alive, const OnResult&) {
  heard_[i] = Clock::now();
  seen_[i] = {alive.activity, *heard_[i]};
}

void WorkerSet::take(std::size_t i, const Preloaded&, const OnResult&) { preloading_.erase(i); }

void WorkerSet::take(std::size_t i, const StandbyHeld& held, const OnResult&) {
  if (held.epoch != epoch_) return;
  const std::lock_guard lock(mutex_);
  status_[i].standby_bytes = held.bytes;
}

void WorkerSet::take(std::size_t i, const Progress& progress, const OnResult&) {
  progress_[i] = progress;
  double sum = 0;
  for (const Progress& p : progress_) sum += p.phase == progress.phase ? p.fraction : 0;
  const double fraction = sum / static_cast<double>(progress_.size());
  constexpr double worth_a_line = 0.1;
  if (progress.phase == reported_phase_ && fraction < reported_fraction_ + worth_a_line) return;
  reported_phase_ = progress.phase;
  reported_fraction_ = fraction;
  report(progress.phase, fmt::format("{:.0f} %", 100 * fraction));
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
  step.took.device_s[workers_[worker].device] = result.compute_s;
  for (std::size_t hop = 0; hop < step.took.stage_s.size(); ++hop)
    if (first_worker_.at(path[hop].stage) == worker) step.took.stage_s[hop] = result.compute_s + result.stage_wait_s;
}

// ---- steps ----

void WorkerSet::warmed_up() { warm_up_step_s_ = slowest_step_s_; }

// They all get the same: what their stages do not need is small beside the hidden states.
void WorkerSet::send(const Step& step) {
  std::vector<Hop> path = plan_->routes[step.route].path;
  path.resize(stages_passed(step, path.size()));
  const Instant sent = Clock::now();
  const std::string message = encode(step);
  for (const Hop& hop : path) {
    const std::size_t first = first_worker_.at(hop.stage);
    for (std::size_t rank = 0; rank < plan_->stage(hop.stage).devices.size(); ++rank)
      workers_[first + rank].link->send(message);
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
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (std::ranges::count(devices, workers_[i].device) == 0) continue;
    ask_to_preload(workers_[i], next);
    preloading_.insert(i);
  }
}

void WorkerSet::load_standby() {
  for (const Worker& worker : workers_)
    if (!plan_->stage(worker.stage).standby_weights.empty()) worker.link->send(encode(LoadStandby{epoch_}));
}

std::vector<StepAtWork> WorkerSet::at_work() const {
  std::vector<StepAtWork> steps;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto& [activity, told] = seen_[i];
    if (activity.epoch != epoch_ || activity.doing != Doing::computing || last_answer_[i] >= activity.step) continue;
    steps.push_back({workers_[i].device, activity.step, activity.for_s});
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

std::optional<WorkerLoss> WorkerSet::silent() const {
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (heard_[i] && seconds_since(*heard_[i]) > options_.silence_s)
      return WorkerLoss{Error(ErrorCode::peer, fmt::format("{} has been silent for {:.1f} s", workers_[i].name(),
                                                           seconds_since(*heard_[i]))),
                        {workers_[i].device}};
  return std::nullopt;
}

// A worker waits for rows that another has sent long ago, or that it cannot get rid of.
std::optional<WorkerLoss> WorkerSet::stalled() const {
  for (std::size_t to = 0; to < workers_.size(); ++to) {
    if (!has_stalled(to)) continue;
    const Activity& waits = seen_[to].activity;
    const auto from = static_cast<std::size_t>(waits.peer);
    return lost_link(from, to,
                     fmt::format("step {} has not come through for {:.1f} s", waits.step,
                                 waits.for_s + seconds_since(seen_[to].told)));
  }
  return std::nullopt;
}

bool WorkerSet::has_stalled(std::size_t receiver) const {
  const Activity& waits = seen_[receiver].activity;
  if (waits.epoch != epoch_ || waits.doing != Doing::receiving) return false;
  const auto step = unanswered_.find(waits.step);
  if (step == unanswered_.end() || step->second.answers.contains(receiver)) return false;
  if (waits.peer < 0 || waits.peer >= std::ssize(workers_)) return false;
  const auto from = static_cast<std::size_t>(waits.peer);
  // What may be on its way: all rows of the step, and of those that were sent before it.
  const PathSpeed path = plan_->cluster.link(plan_->cluster.find_device(workers_[from].device),
                                             plan_->cluster.find_device(workers_[receiver].device));
  constexpr double row_element_bytes = 4, patience = 4;
  const double rows_bytes = static_cast<double>(unanswered_tokens_ * plan_->model.arch.hidden) * row_element_bytes;
  const double limit_s = options_.stall_s + patience * path.seconds(rows_bytes);
  const auto lasts = [&](const Seen& seen) { return seen.activity.for_s + seconds_since(seen.told) > limit_s; };
  if (!lasts(seen_[receiver])) return false;
  const auto sent = step->second.answers.find(from);
  if (sent != step->second.answers.end()) return seconds_since(sent->second) > limit_s;
  const Activity& sends = seen_[from].activity;
  return sends.epoch == epoch_ && sends.step == waits.step && sends.doing == Doing::sending &&
         sends.peer == static_cast<std::int32_t>(receiver) && lasts(seen_[from]);
}

// Both ends live. The one with fewer layers is given up: less moves.
WorkerLoss WorkerSet::lost_link(std::size_t from, std::size_t to, const std::string& how) const {
  const auto layers = [&](std::size_t i) { return plan_->stage(workers_[i].stage).layers.size(); };
  return {.cause = Error(ErrorCode::peer, fmt::format("the link from {} to {} is lost: {}", workers_[from].device,
                                                      workers_[to].device, how)),
          .devices = {workers_[layers(from) < layers(to) ? from : to].device},
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
      silent += (silent.empty() ? "" : ", ") + workers_[i].name();
      devices.push_back(workers_[i].device);
    }
    if (!silent.empty()) break;
  }
  return {Error(ErrorCode::peer, fmt::format("{} did not answer step {} within {:.1f} s", silent, id, elapsed_s)),
          std::move(devices)};
}

// ---- failure ----

// When one worker dies, its neighbours soon report that their connections broke. Looks for the one that did not fail
// because of another: killed, or with an error of its own.
WorkerLoss WorkerSet::find_cause(const OnResult& on_result) {
  const auto first_seen = Clock::now();
  for (;;) {
    std::optional<WorkerLoss> consequence, link;
    const bool settled = seconds_since(first_seen) > settle_s;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (take_messages(i, on_result)) continue;
      const auto exit = workers_[i].link->exit();
      const bool killed = exit && exit->how == WorkerExit::How::signal;
      const bool left_silently = exit && !reported_[i] && exit->number != static_cast<int>(ErrorCode::peer);
      const bool own_error = reported_[i] && reported_[i]->code() != ErrorCode::peer;
      WorkerLoss named = describe_loss(i);
      if (killed || left_silently || own_error) return named;
      if (!consequence) consequence = std::move(named);
      if (!link) link = link_of_interruption(i);
    }
    if (settled) return link ? *link : *consequence;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Where a worker cannot reach another that lives, and nobody has died, it is what lies between them.
std::optional<WorkerLoss> WorkerSet::link_of_interruption(std::size_t i) const {
  for (const std::int32_t place : suspects_[i]) {
    const auto from = static_cast<std::size_t>(place);
    if (place < 0 || from >= workers_.size() || from == i || workers_[from].link->ended()) continue;
    return lost_link(from, i, reported_[i] ? reported_[i]->what() : "");
  }
  return std::nullopt;
}

WorkerLoss WorkerSet::describe_loss(std::size_t i) {
  const auto exit = workers_[i].link->exit();
  const std::string name = workers_[i].name();
  const auto named = [&](Error cause) {
    return WorkerLoss{.cause = std::move(cause), .devices = {workers_[i].device}, .kv_tokens = kv_tokens_[i]};
  };
  if (exit && exit->how == WorkerExit::How::signal)
    return named(Error(ErrorCode::peer, fmt::format("{} {}", name, exit->text()),
                       "if it was not killed on purpose, the machine may have run out of memory (see `dmesg`); start "
                       "again to load all workers"));
  if (exit && exit->how == WorkerExit::How::machine) return gone_with(i);
  if (reported_[i])
    return named(Error(reported_[i]->code(), fmt::format("{}: {}", name, reported_[i]->what()), reported_[i]->hint()));
  WorkerLoss loss = named(Error(ErrorCode::peer, fmt::format("{} {}", name, exit.value_or(WorkerExit{}).text())));
  loss.gone = exit && exit->how == WorkerExit::How::machine;
  return loss;
}

// All workers whose machines are gone, not the i-th alone.
WorkerLoss WorkerSet::gone_with(std::size_t i) {
  WorkerLoss loss{
      Error(ErrorCode::peer, fmt::format("{} {}", workers_[i].name(), workers_[i].link->exit()->text())), {}, true};
  for (const Worker& worker : workers_)
    if (const auto exit = worker.link->exit(); exit && exit->how == WorkerExit::How::machine)
      loss.devices.push_back(worker.device);
  return loss;
}

}  // namespace motley
