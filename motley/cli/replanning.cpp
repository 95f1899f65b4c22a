#include "motley/cli/replanning.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

constexpr double look_s = 1;          // between looks whether a plan is served at all, and devices became slow
constexpr double settle_s = 1;        // after a change among the members, before a plan is made for it
constexpr double probe_s = 1;         // of traffic between a machine that joins and each other one
constexpr double worth_moving = 1.1;  // times the tokens/s of the plan in force

}  // namespace

Replanning::Replanning(Members& members, MemberPlans& plans, Driver& driver, bool measures_links,
                       std::function<void(const std::string&, const std::string&)> report)
    : members_(members),
      plans_(plans),
      driver_(driver),
      measures_links_(measures_links),
      report_(std::move(report)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

Replanning::~Replanning() {
  thread_.request_stop();
  wake_.notify();
}

void Replanning::run(const std::stop_token& stop) {
  Instant due = no_deadline;
  while (!stop.stop_requested()) {
    std::array<pollfd, 2> waiting{pollfd{members_.changed(), POLLIN, 0}, pollfd{wake_.descriptor(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), poll_timeout_ms(std::min(due, deadline_in(look_s))));
    if (stop.stop_requested()) return;
    if (waiting[0].revents != 0) {
      members_.clear_changed();
      spares_due_ = true;
      due = deadline_in(must_move() ? 0 : settle_s);
    }
    if (due == no_deadline && looks_for_slow()) due = Clock::now();
    if (due == no_deadline) make_spares();
    // Devices that were lost by their workers' deaths are tried again.
    if (due == no_deadline && driver_.status().phase == DeploymentPhase::down) due = deadline_in(RestartRule().away_s);
    if (seconds_until(due) > 0) continue;
    due = no_deadline;
    try {
      if (!replan()) due = deadline_in(settle_s);
    } catch (const Error& error) {
      report_("plan", fmt::format("no change: {}", error.what()));
    }
  }
}

// Somebody that the plan uses wants to leave, or nothing is served. After a loss the driver itself asks for a plan.
bool Replanning::must_move() const {
  const DriverStatus status = driver_.status();
  const auto used = machines_of(*status.plan);
  return status.phase == DeploymentPhase::down ||
         std::ranges::any_of(members_.leaving(), [&](const std::string& name) { return used.contains(name); });
}

bool Replanning::looks_for_slow() {
  const DriverStatus status = driver_.status();
  std::set<std::string> serving;
  for (const WorkerStatus& worker : status.workers) serving.insert(worker.device);
  if (!slow_.note(status.slow, serving, status.uptime_s)) return false;
  plans_.set_slow(slow_.factors());
  spares_due_ = true;
  return true;
}

// With one other machine after the other: the links between those that serve are left alone.
void Replanning::measure_newcomers() {
  std::set<std::string> known;
  for (const MachineLink& link : members_.links()) known.insert(link.from);
  const std::vector<MemberStatus> there = members_.list();
  for (const MemberStatus& newcomer : there)
    for (const MemberStatus& other : there) {
      if (known.contains(newcomer.name) || newcomer.name == other.name) continue;
      for (const MachineLink& link : members_.measure_links(probe_s, wake_.descriptor(), {newcomer.name, other.name}))
        if (link.from == std::min(newcomer.name, other.name) && link.to == std::max(newcomer.name, other.name))
          report_("links", describe(link));
    }
}

// False: not now.
bool Replanning::replan() {
  const DriverStatus status = driver_.status();
  if (status.phase != DeploymentPhase::serving && status.phase != DeploymentPhase::down) return false;
  if (measures_links_ && status.phase == DeploymentPhase::serving) measure_newcomers();
  ServeOutcome outcome = plans_.plan({}, true, status.plan.get()).outcome;
  if (!outcome.plan) {
    report_("plan", fmt::format("nothing fits the members that are there: {}", outcome.reason));
    return true;
  }
  const double now = plans_.tokens_per_s(*status.plan), then = outcome.plan->predicted.tokens_per_s;
  if (!must_move() && then < worth_moving * now) return true;
  report_("plan", fmt::format("another pays: {:.0f} tokens/s are predicted over {}, {:.0f} before; {}", then,
                              counted(machines_of(*outcome.plan).size(), "machine"), now,
                              moves_of(*status.plan, *outcome.plan)));
  driver_.change_plan(std::move(*outcome.plan));
  return true;
}

// Once a plan serves, after another has taken effect or what is known of the members has changed.
void Replanning::make_spares() {
  const DriverStatus status = driver_.status();
  if (status.phase != DeploymentPhase::serving || (!spares_due_ && status.epoch == spares_of_)) return;
  spares_due_ = false;
  spares_of_ = status.epoch;
  spares_thread_ = std::jthread([this, plan = status.plan, lost = status.lost](const std::stop_token& stop) {
    constexpr int idle = 19;
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), idle);
    try {
      plans_.make_spares(*plan, lost, stop);
    } catch (const Error& error) {
      report_("plan", fmt::format("no spare ones: {}", error.what()));
    }
  });
}

}  // namespace motley::cli
