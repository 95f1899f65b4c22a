// Which plan a deployment runs, and how far it is: a value that events change, without processes, sockets or a clock.
// Its driver acts on phase() after each event. Each plan that takes effect has an epoch, from 1; the workers of
// one epoch know nothing of another's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/workers/worker_set.hpp"

namespace motley {

// A plan for what is left of `plan` after a loss; `lost` are all devices that were lost so far. None: nothing fits.
using Replan = std::function<std::optional<ServePlan>(const ServePlan& plan, const std::set<std::string>& lost)>;

// A worker that dies is started again on its device, until the device counts as lost.
struct RestartRule {
  int deaths = 1;  // a device is lost after this many deaths of its worker within window_s without a token in between
  double window_s = 60;
  double first_wait_s =
      1;               // before the second start; twice as long before each that follows. The first waits for nothing
  double away_s = 60;  // then a lost device is tried again; twice as long each time that it does not get to serve
  // Where nothing fits what is left, change_to() is waited for, and no loss is final but for what a worker itself says
  // before the first plan has served, unless that is of its machine (ErrorCode::environment). Otherwise the deployment
  // fails.
  bool waits = false;
};

enum class DeploymentPhase {
  loading,     // the workers of plan() at epoch() start and load
  warming_up,  // every route is to produce a token
  serving,
  pausing,  // another plan waits for the end of the steps under way
  down,     // nothing fits what is left: there are no workers until another plan takes effect
  failed
};
std::string_view name_of(DeploymentPhase phase);

// What runs, for those that watch it.
struct DeploymentStatus {
  DeploymentPhase phase = DeploymentPhase::loading;
  std::shared_ptr<const ServePlan> plan;  // in force
  std::uint64_t epoch = 0;                // of the plan: from 1, one more with each change
  std::vector<WorkerStatus> workers;
  std::map<std::string, double> slow;  // devices that compute this many times slower than they used to
  std::set<std::string> lost;          // devices, which are not planned with
  double uptime_s = 0;
};

class DeploymentState {
 public:
  // Throws an input error for a plan that cannot run or be served. Without `replan` every loss is final.
  explicit DeploymentState(ServePlan plan, Replan replan = {}, RestartRule restart = {});

  DeploymentPhase phase() const { return phase_; }
  std::uint64_t epoch() const { return epoch_; }
  const std::shared_ptr<const ServePlan>& plan() const { return plan_; }
  std::set<std::string> lost_devices() const;
  const std::optional<Error>& failure() const { return failure_; }  // set where the phase is `failed`

  double wait_s() const { return wait_s_; }  // before the workers of the epoch start
  std::optional<double> returns_s() const;   // when return_lost() is due, on the clock of the events

  // ---- events, with seconds on a clock of the caller's ----

  // Every worker of the epoch has loaded: loading -> warming_up.
  void loaded();
  // Every route has produced a token: warming_up -> serving.
  void warmed_up();
  // Workers of the epoch were lost, or could not be started. Where the rule lets all of them start again, so do the
  // plan's, at another epoch. Otherwise the waiting plan takes effect where it does without the lost devices, else what
  // `replan` returns: -> loading; where devices are gone it counts as asked for, since these do not return by
  // themselves.
  // -> failed, or down, where there is none or where it does not suit this deployment; a loss before the first plan has
  // served is final unless the rule waits. Takes as long as `replan` does. Where memory is short, and none is lost, the
  // same plan with fewer keys and values takes effect, also before the first has served.
  void lost(const WorkerLoss& loss, double now_s = 0);
  // A request got a token: earlier deaths count no more.
  void produced() { deaths_.clear(); }
  // Devices that have been away long enough count as there again, but for those that are out of service: only another
  // plan brings these back. Where the plan that was asked for last does with them: serving -> pausing, and it takes
  // effect.
  void return_lost(double now_s, const std::map<std::string, std::string>& out_of_service = {});
  // Another plan is to take effect: -> pausing, or at once where there are no workers: -> loading. A plan that still
  // waits is replaced; devices of the new plan count as there again. Throws an input error for a plan that cannot be
  // served or is for another model, and the failure where the phase is `failed`.
  void change_to(ServePlan plan);
  // No step is under way: pausing -> loading, under the plan that waits.
  void paused();
  // Nothing helps: -> failed.
  void fail(const Error& cause);

  // What the state depends on but for epoch and times: for tests that visit each once.
  std::string fingerprint() const;

 private:
  void take_effect(std::shared_ptr<const ServePlan> plan);
  void give_up(const Error& cause);
  void shrink_cache(const WorkerLoss& loss);
  bool starts_again(const WorkerLoss& loss, double now_s);
  void lose(const std::string& device, double now_s);

  Replan replan_;
  RestartRule restart_;
  DeploymentPhase phase_ = DeploymentPhase::loading;
  std::uint64_t epoch_ = 1;
  std::shared_ptr<const ServePlan> plan_, next_, asked_;  // next_: waits, while pausing; asked_: not made by `replan`
  std::map<std::string, std::vector<double>> deaths_;     // when, by device
  std::map<std::string, double> lost_;                    // until when
  std::map<std::string, int> times_lost_;                 // since it served last
  double wait_s_ = 0;
  bool has_served_ = false;
  std::optional<Error> failure_;
};

}  // namespace motley
