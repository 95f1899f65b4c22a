// Watches the machines while a plan is served, and brings another where that pays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "motley/comm/net/wakeup.hpp"
#include "motley/deployment/deployment_state.hpp"
#include "motley/deployment/machines.hpp"
#include "motley/deployment/slow_devices.hpp"
#include "motley/deployment/spare_plans.hpp"

namespace motley {

// The plan that is watched: what runs, and how another takes its place.
struct RunningPlan {
  std::function<DeploymentStatus()> status;
  std::function<void(ServePlan)> change;  // throws an Error where that cannot be
};

// Links of machines that have joined, each once and the smaller name first: none of theirs was measured.
std::vector<std::pair<std::string, std::string>> unmeasured_pairs(const std::vector<std::string>& machines,
                                                                  const std::vector<MachineLink>& links);

// What is done after which change. Looks when it is told to, at the time that the deployment tells. Of one thread;
// spare plans are made by a thread of its own after each change.
class PlanWatch {
 public:
  // `measures_links`: those of machines that join are measured before they are planned with. `stop`: a descriptor that
  // ends measurements.
  PlanWatch(Machines& machines, SparePlans& plans, RunningPlan running, bool measures_links, int stop,
            DeploymentReport report)
      : machines_(machines),
        plans_(plans),
        running_(std::move(running)),
        measures_links_(measures_links),
        stop_(stop),
        report_(std::move(report)) {}

  // `changed`: the machines have, since the last look. Returns after how many seconds the next one is due.
  double look(bool changed);

 private:
  bool must_move(const DeploymentStatus& status) const;
  bool looks_for_slow(const DeploymentStatus& status);
  void measure_newcomers();
  bool replan(const DeploymentStatus& status);
  void make_spares(const DeploymentStatus& status);

  Machines& machines_;
  SparePlans& plans_;
  const RunningPlan running_;
  const bool measures_links_;
  const int stop_;
  const DeploymentReport report_;
  std::optional<double> due_s_;  // another plan is to be looked for
  SlowDevices slow_;
  std::uint64_t spares_of_ = 0;  // epoch
  bool spares_due_ = true;
  std::jthread spares_thread_;
};

// Looks whenever the machines change, and each second, while it lives.
class PlanWatchThread {
 public:
  PlanWatchThread(Machines& machines, SparePlans& plans, RunningPlan running, bool measures_links,
                  DeploymentReport report);
  ~PlanWatchThread();
  PlanWatchThread(const PlanWatchThread&) = delete;
  PlanWatchThread& operator=(const PlanWatchThread&) = delete;

 private:
  Wakeup wake_;
  std::jthread thread_;
};

}  // namespace motley
