// Plans over the machines of a deployment, and spare ones for the losses that it may have.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "motley/deployment/machines.hpp"
#include "motley/planner/serve/if_lost.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

// A plan for what the machines offer, without the devices that are excluded.
using PlanSearch =
    std::function<ServeOutcome(const Cluster& cluster, const std::vector<std::string>& excluded, bool quiet)>;
// What happens, for people: ("plan", "no change: ...").
using DeploymentReport = std::function<void(const std::string& what, const std::string& detail)>;

// Safe to use from several threads.
class SparePlans {
 public:
  // `cluster`: what is planned with in place of what the machines offer. `without`: devices that no plan uses.
  // `machine`: the driver's.
  SparePlans(PlanSearch search, std::optional<Cluster> cluster, const std::vector<std::string>& without,
             std::string machine, const Machines& machines, DeploymentReport report)
      : search_(std::move(search)),
        cluster_(std::move(cluster)),
        without_(without.begin(), without.end()),
        machine_(std::move(machine)),
        machines_(machines),
        report_(std::move(report)) {}

  // The first plan, over all machines that are there.
  ServeOutcome plan(bool quiet) const;
  // In place of `before`, over all machines that are there: as far as it costs nothing, devices keep the places that
  // they have. A spare plan for the same machines, links and speeds is taken as it is.
  ServeOutcome plan_again(const ServePlan& before) const;
  // The same without these devices, and says so; none where nothing fits.
  std::optional<ServePlan> after_loss(const ServePlan& before, const std::set<std::string>& lost) const;
  // What `plan` is predicted to bring by what is known of its devices and links now.
  double tokens_per_s(ServePlan plan) const;
  // From now on plans are made with devices that are this many times slower than they were measured.
  void set_slow(std::map<std::string, double> factors);

  // Makes a plan for each possible loss while these devices are lost already, in place of those that are there, until
  // `stop`, and for some seconds at most.
  void make_spares(const ServePlan& plan, const std::set<std::string>& lost, const std::stop_token& stop);
  // What each loss would cost by its spare plan.
  std::vector<LossImpact> losses() const;

 private:
  // What a search goes by.
  struct Question {
    Cluster cluster;
    std::vector<std::string> excluded;
    bool operator==(const Question&) const = default;
  };
  struct Spare {
    std::string name;  // of what is lost
    Question question;
    ServePlan before;
    ServeOutcome outcome;
  };

  struct Planned {
    ServeOutcome outcome;
    bool was_spare = false;
  };

  Question question(std::set<std::string> lost) const;  // with those that are out of service
  ServeOutcome answer(const Question& question, bool quiet, const ServePlan* before) const;
  Planned planned(const ServePlan& before, const std::set<std::string>& lost) const;
  Cluster to_plan_with(Cluster offered) const;

  const PlanSearch search_;
  const std::optional<Cluster> cluster_;
  const std::set<std::string> without_;
  const std::string machine_;
  const Machines& machines_;
  const DeploymentReport report_;
  mutable std::mutex mutex_;
  std::map<std::string, double> slow_;  // guarded, and so are these
  std::vector<Spare> spares_;
};

// For people: bytes of layers that stay and that are loaded.
std::string moves_of(const ServePlan& before, const ServePlan& after);

}  // namespace motley
