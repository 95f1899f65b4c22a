#include "motley/deployment/spare_plans.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/cluster/slowed.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/plan_again.hpp"
#include "motley/planner/serve/replan.hpp"

namespace motley {
namespace {

constexpr double spares_s = 10;

std::set<std::string> names_of(const std::vector<Machine>& machines) {
  std::set<std::string> names;
  for (const Machine& machine : machines) names.insert(machine.name);
  return names;
}

}  // namespace

std::string moves_of(const ServePlan& before, const ServePlan& after) {
  const WeightMoves moves = weight_moves(before, after);
  return fmt::format("{} of layers stay where they are, {} are loaded",
                     human_bytes(static_cast<double>(moves.kept_bytes)),
                     human_bytes(static_cast<double>(moves.loaded_bytes)));
}

Cluster SparePlans::to_plan_with(Cluster offered) const {
  Cluster cluster = cluster_ ? *cluster_ : std::move(offered);
  // Tokens come to this machine from the last stage, and go on from here to the first.
  if (!cluster.description.driver && std::ranges::count(cluster.machines, machine_, &Machine::name) > 0)
    cluster.description.driver = DriverCost{.machine = machine_};
  const std::lock_guard lock(mutex_);
  return slow_.empty() ? cluster : slowed(cluster, slow_);
}

// A machine that has lost all devices is as one that has left: the loss of it may show either way.
SparePlans::Question SparePlans::question(std::set<std::string> lost) const {
  for (const auto& [device, cause] : machines_.out_of_service()) lost.insert(device);
  Cluster offered = machines_.offered({});
  std::set<std::string> there = names_of(offered.machines), gone = there;
  for (const Device& device : offered.devices)
    if (!lost.contains(device.name)) gone.erase(machine_of(device.name));
  for (const std::string& machine : gone) there.erase(machine);
  if (there.empty()) return {};
  if (!gone.empty()) offered = machines_.offered(gone);
  Question question{.cluster = to_plan_with(std::move(offered)), .excluded = {}};
  for (const Device& device : question.cluster.devices)
    if (lost.contains(device.name) || without_.contains(device.name) || !there.contains(machine_of(device.name)))
      question.excluded.push_back(device.name);
  return question;
}

ServeOutcome SparePlans::answer(const Question& question, bool quiet, const ServePlan* before) const {
  if (question.excluded.size() == question.cluster.devices.size())
    return {.plan = {}, .reason = "no machine is left", .hint = {}, .front = {}};
  ServeOutcome outcome = search_(question.cluster, question.excluded, quiet);
  if (outcome.plan && before != nullptr)
    outcome.plan = keep_places(*std::move(outcome.plan), *before, question.excluded, options_of(*outcome.plan).cost);
  return outcome;
}

SparePlans::Planned SparePlans::planned(const ServePlan& before, const std::set<std::string>& lost) const {
  const Question asked = question(lost);
  {
    const std::lock_guard lock(mutex_);
    for (const Spare& spare : spares_)
      if (spare.question == asked && spare.before.stages == before.stages) return {spare.outcome, true};
  }
  return {answer(asked, true, &before), false};
}

ServeOutcome SparePlans::plan(bool quiet) const { return answer(question({}), quiet, nullptr); }

ServeOutcome SparePlans::plan_again(const ServePlan& before) const { return planned(before, {}).outcome; }

std::optional<ServePlan> SparePlans::after_loss(const ServePlan& before, const std::set<std::string>& lost) const {
  Planned next = planned(before, lost);
  if (next.outcome.plan)
    report_("plan", fmt::format("without what was lost{}: {}", next.was_spare ? ", as prepared" : "",
                                moves_of(before, *next.outcome.plan)));
  return std::move(next.outcome.plan);
}

double SparePlans::tokens_per_s(ServePlan plan) const {
  Cluster cluster = to_plan_with(machines_.offered({}));
  for (const Device& device : plan.cluster.devices)
    if (std::ranges::find(cluster.devices, device.name, &Device::name) == cluster.devices.end())
      return plan.predicted.tokens_per_s;
  plan.cluster = std::move(cluster);
  predict(plan, options_of(plan).cost);
  return plan.predicted.tokens_per_s;
}

void SparePlans::set_slow(std::map<std::string, double> factors) {
  const std::lock_guard lock(mutex_);
  slow_ = std::move(factors);
}

void SparePlans::make_spares(const ServePlan& plan, const std::set<std::string>& lost, const std::stop_token& stop) {
  const Instant until = deadline_in(spares_s);
  std::vector<Spare> spares;
  for (PossibleLoss& loss : possible_losses(plan)) {
    if (stop.stop_requested() || seconds_until(until) <= 0) break;
    loss.devices.insert(lost.begin(), lost.end());
    Question asked = question(loss.devices);
    ServeOutcome outcome = answer(asked, true, &plan);
    spares.push_back({std::move(loss.name), std::move(asked), plan, std::move(outcome)});
  }
  const std::lock_guard lock(mutex_);
  spares_ = std::move(spares);
}

std::vector<LossImpact> SparePlans::losses() const {
  const std::lock_guard lock(mutex_);
  std::vector<LossImpact> all;
  for (const Spare& spare : spares_) all.push_back(loss_impact(spare.name, spare.before, spare.outcome.plan));
  return all;
}

}  // namespace motley
