// The options of running a plan, shared by `serve` and `chat`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "motley/base/event_log.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/server/serve_settings.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley::cli {

struct ServingOptions {
  std::string plan;          // a plan file, or ...
  PlanningOptions planning;  // ... a cluster to plan for first
  std::string transport = "shm";
  std::string backend = "cpu";
  int worker_threads = 0;  // 0: one
};

// PLAN, --model, --cluster and the options of workers.
void add_serving_options(CLI::App& verb, ServingOptions& options);
// Before a plan is searched that could not be served: throws an input error for types that workers do not compute in.
void require_served_types(const PlanningOptions& planning);
// For an EventLog: what happens with its time, on stderr; nothing where quiet.
std::function<void(const Event&)> shown(bool quiet);

// For StopSignals: the exit code of a process that has nothing to end but itself.
int interrupted();

// Reads the plan, or makes it; throws when none fits, and when --model disagrees with the plan.
ServePlan serving_plan(const ServingOptions& options);
// What runs its devices on this machine.
LocalFleetOptions local_fleet(const ServingOptions& options);
ServeSettings serve_settings(const ServingOptions& options, const ServePlan& plan, EventLog& events);

}  // namespace motley::cli
