// Plans that are served by the machines that have joined: gathered, planned over, and watched.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/base/event_log.hpp"
#include "motley/deployment/plan_watch.hpp"
#include "motley/deployment/spare_plans.hpp"
#include "motley/fleet/gathering.hpp"
#include "motley/serving/served_deployment.hpp"

namespace motley {

struct JoinedDeploymentOptions {
  PlanSearch search = {};
  // What is planned with in place of the members' reports, and the first plan if it was made before: the machines of
  // both are waited for.
  std::optional<Cluster> cluster = {};
  std::optional<ServePlan> plan = {};
  std::vector<std::string> without = {};  // devices that no plan uses
  int wait = 1;                           // for this many machines, this one among them
  bool quiet = false;                     // the first search
};

class JoinedDeployment final : public ServedDeployment, public JoinedMachines {
 public:
  // Others can join from first_plan() on.
  JoinedDeployment(std::unique_ptr<DeploymentStore> store, GatheringOptions gathered, JoinedDeploymentOptions options,
                   EventLog& events);

  // Shows the link, waits for the machines, measures what lies between them, and plans. Throws an input error where
  // they are not as described, a negative error where nothing fits.
  ServePlan first_plan();
  // On all machines, unless another driver has taken it up: then throws StoreFenced.
  void end();

  Fleet& fleet() override { return gathering_.machines(); }
  RestartRule restart() const override { return {.deaths = 3, .waits = true}; }
  Replan replan() override { return std::bind_front(&SparePlans::after_loss, &plans_); }
  JoinedMachines* machines() override { return this; }
  void watch(Generator& driver) override;
  void stop_watching() override { watch_.reset(); }

  Value describe() const override;
  std::vector<std::string> drain(const std::string& member, bool revoke) override;
  double invite(bool revoke, std::optional<double> lifetime_s) override;

 private:
  std::set<std::string> machines_needed() const;

  const JoinedDeploymentOptions options_;
  EventLog& events_;
  Gathering gathering_;
  SparePlans plans_;
  std::optional<PlanWatchThread> watch_;
};

}  // namespace motley
