// Runs a serving plan: starts one worker per device, feeds the routes through the scheduler, watches over the workers,
// and hands out tokens. Knows token ids; text and HTTP stand above it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/event_log.hpp"
#include "motley/batching/step_rule.hpp"
#include "motley/deployment/deployment_state.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/serving/generator.hpp"
#include "motley/workers/fleet.hpp"
#include "motley/workers/worker_set.hpp"

namespace motley {

struct DriverOptions {
  std::filesystem::path model_folder;  // or a GGUF file
  std::int64_t max_queue = 256;
  std::int64_t micro_batches = 0;  // per route; 0: the plan's
  bool prefix_cache = true;        // requests find what others have computed of the same tokens
  MakeStepRule step_rule = timed_steps;
  double watchdog_s = 10;  // see WorkerSetOptions
  // Finds a plan after a loss; without it a loss ends the deployment. Called on the driver's own thread, which does
  // nothing else meanwhile.
  Replan replan = {};
  RestartRule restart = {};
  double hold_s = 30;  // that requests wait while nothing fits what is left; then they fail, and new ones are refused
  Report report = {};  // of phases of the start, and what happens later
  // Takes what a step brought its requests, all at once; the events of one request are in order. Called on the driver's
  // own thread; must not block or throw. It may call generate() and cancel(). A request's first events may arrive
  // before generate() has returned its id.
  std::function<void(std::vector<GenerateEvent>)> on_events;
};

class Driver final : public Generator {
 public:
  // Checks the plan, starts the workers in `fleet`, which outlives this, and returns when every route has produced a
  // token; where `restart` waits, also when nothing fits what is left, so that change_plan() can bring another. Throws
  // what a worker reported (its own message, as when its memory does not hold its part), a peer error when one died;
  // leaves no process behind.
  Driver(ServePlan plan, Fleet& fleet, DriverOptions options);
  ~Driver() override;  // stops all workers; requests that are open end as cancelled

  std::uint64_t generate(GenerateRequest request) override;
  void cancel(std::uint64_t id) override;
  DriverStatus status() const override;
  void change_plan(ServePlan plan) override;

  // Refuses new requests (limit error), lets those under way end (at most `seconds`). Not from the driver's own thread.
  void drain(double seconds);
  // Called once, from the driver's thread, when the deployment fails; at once if that has happened.
  void on_failure(std::function<void(const Error&)> callback);
  std::shared_ptr<const ServePlan> plan() const;  // in force

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
