#include "motley/deployment/plan_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

constexpr double look_s = 1;            // between looks whether a plan is served at all, and devices became slow
constexpr double settle_s = 1;          // after a change among the machines, before a plan is made for it
constexpr double newcomer_probe_s = 1;  // of traffic between a machine that joins and each other one
constexpr double worth_moving = 1.1;    // times the tokens/s of the plan in force

}  // namespace

std::vector<std::pair<std::string, std::string>> unmeasured_pairs(const std::vector<std::string>& machines,
                                                                  const std::vector<MachineLink>& links) {
  std::set<std::string> known;
  for (const MachineLink& link : links) known.insert(link.from);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& one : machines)
    for (const std::string& other : machines)
      if (one < other && !(known.contains(one) && known.contains(other))) pairs.emplace_back(one, other);
  return pairs;
}

double PlanWatch::look(bool changed) {
  const DeploymentStatus status = running_.status();
  const double now_s = status.uptime_s;
  if (changed) {
    spares_due_ = true;
    due_s_ = now_s + (must_move(status) ? 0 : settle_s);
  }
  if (!due_s_ && looks_for_slow(status)) due_s_ = now_s;
  if (!due_s_) make_spares(status);
  // Devices that were lost by their workers' deaths are tried again.
  if (!due_s_ && status.phase == DeploymentPhase::down) due_s_ = now_s + RestartRule().away_s;
  if (due_s_ && *due_s_ <= now_s) {
    due_s_.reset();
    try {
      if (!replan(status)) due_s_ = now_s + settle_s;
    } catch (const Error& error) {
      report_("plan", fmt::format("no change: {}", error.what()));
    }
  }
  return due_s_ ? std::clamp(*due_s_ - now_s, 0.0, look_s) : look_s;
}

// A machine that the plan uses wants to leave, a device of it cannot be used any more, or nothing is served. After a
// loss the driver itself asks for a plan.
bool PlanWatch::must_move(const DeploymentStatus& status) const {
  const std::set<std::string> used = machines_of(*status.plan);
  const std::map<std::string, std::string> out_of_service = machines_.out_of_service();
  return status.phase == DeploymentPhase::down ||
         std::ranges::any_of(machines_.leaving(), [&](const std::string& name) { return used.contains(name); }) ||
         std::ranges::any_of(worker_devices(*status.plan),
                             [&](const std::string& device) { return out_of_service.contains(device); });
}

bool PlanWatch::looks_for_slow(const DeploymentStatus& status) {
  std::set<std::string> serving;
  for (const WorkerStatus& worker : status.workers) serving.insert(worker.device);
  if (!slow_.note(status.slow, serving, status.uptime_s)) return false;
  plans_.set_slow(slow_.factors());
  spares_due_ = true;
  return true;
}

// With one other machine after the other: the links between those that serve are left alone.
void PlanWatch::measure_newcomers() {
  std::vector<std::string> there;
  for (const Machine& machine : machines_.offered({}).machines) there.push_back(machine.name);
  for (const auto& [from, to] : unmeasured_pairs(there, machines_.links()))
    for (const MachineLink& link : machines_.measure_links(newcomer_probe_s, stop_, {from, to}))
      if (link.from == from && link.to == to) report_("links", describe(link));
}

// False: not now.
bool PlanWatch::replan(const DeploymentStatus& status) {
  if (status.phase != DeploymentPhase::serving && status.phase != DeploymentPhase::down) return false;
  if (measures_links_ && status.phase == DeploymentPhase::serving) measure_newcomers();
  ServeOutcome outcome = plans_.plan_again(*status.plan);
  if (!outcome.plan) {
    report_("plan", fmt::format("nothing fits the members that are there: {}", outcome.reason));
    return true;
  }
  const double now = plans_.tokens_per_s(*status.plan), then = outcome.plan->predicted.tokens_per_s;
  if (!must_move(running_.status()) && then < worth_moving * now) return true;
  report_("plan", fmt::format("another pays: {:.0f} tokens/s are predicted over {}, {:.0f} before; {}", then,
                              counted(machines_of(*outcome.plan).size(), "machine"), now,
                              moves_of(*status.plan, *outcome.plan)));
  running_.change(*std::move(outcome.plan));
  return true;
}

// Once a plan serves, after another has taken effect or what is known of the machines has changed.
void PlanWatch::make_spares(const DeploymentStatus& status) {
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

PlanWatchThread::PlanWatchThread(Machines& machines, SparePlans& plans, RunningPlan running, bool measures_links,
                                 DeploymentReport report) {
  const int wake = wake_.descriptor();
  thread_ = std::jthread([&machines, &plans, running = std::move(running), measures_links, report = std::move(report),
                          wake](const std::stop_token& stop) {
    PlanWatch watch(machines, plans, running, measures_links, wake, report);
    for (double wait_s = 0; !stop.stop_requested();) {
      std::array<pollfd, 2> waiting{pollfd{machines.changed(), POLLIN, 0}, pollfd{wake, POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), poll_timeout_ms(deadline_in(wait_s)));
      if (stop.stop_requested()) return;
      const bool changed = waiting[0].revents != 0;
      if (changed) machines.clear_changed();
      wait_s = watch.look(changed);
    }
  });
}

PlanWatchThread::~PlanWatchThread() {
  thread_.request_stop();
  wake_.notify();
}

}  // namespace motley
