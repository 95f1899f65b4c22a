#include "motley/cli/member_plans.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/cluster/slowed.hpp"
#include "motley/fleet/cluster_of.hpp"
#include "motley/planner/serve/grouping/write.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley::cli {
namespace {

constexpr double spares_s = 10;

}  // namespace

std::set<std::string> machines_of(const ServePlan& plan) {
  std::set<std::string> names;
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices) names.insert(machine_of(device));
  return names;
}

std::string describe(const MachineLink& link) {
  return fmt::format("{} to {}: {}, {}/s", link.from, link.to, human_seconds(link.latency_s),
                     human_bytes(link.bytes_per_s));
}

std::string moves_of(const ServePlan& before, const ServePlan& after) {
  const WeightMoves moves = weight_moves(before, after);
  return fmt::format("{} of layers stay where they are, {} are loaded",
                     human_bytes(static_cast<double>(moves.kept_bytes)),
                     human_bytes(static_cast<double>(moves.loaded_bytes)));
}

Cluster MemberPlans::cluster_of_members(const std::vector<MemberStatus>& there) const {
  Cluster cluster = cluster_ ? *cluster_ : cluster_of(there, members_.links(), assumed_network());
  // Tokens come to this machine from the last stage, and go on from here to the first.
  if (!cluster.description.driver && std::ranges::count(cluster.machines, machine_, &Machine::name) > 0)
    cluster.description.driver = DriverCost{.machine = machine_};
  const std::lock_guard lock(mutex_);
  return slow_.empty() ? cluster : slowed(cluster, slow_);
}

// A machine that has lost all devices is as one that has left: the loss of it may show either way.
MemberPlans::Question MemberPlans::question(const std::set<std::string>& lost) const {
  std::vector<MemberStatus> there = members_.list();
  std::erase_if(there, [&](const MemberStatus& member) {
    for (std::size_t slot = 0; slot < member.devices.size(); ++slot)
      if (!lost.contains(fmt::format("{}/{}", member.name, slot))) return false;
    return true;
  });
  if (there.empty()) return {};
  Question question{.cluster = cluster_of_members(there), .excluded = {}};
  for (const Device& device : question.cluster.devices) {
    const std::string& machine = question.cluster.machines[static_cast<std::size_t>(device.machine)].name;
    if (lost.contains(device.name) || without_.contains(device.name) ||
        std::ranges::find(there, machine, &MemberStatus::name) == there.end())
      question.excluded.push_back(device.name);
  }
  return question;
}

ServeOutcome MemberPlans::answer(const Question& question, bool quiet, const ServePlan* before) const {
  if (question.excluded.size() == question.cluster.devices.size())
    return {.plan = {}, .reason = "no machine is left", .hint = {}, .front = {}};
  ServeOutcome outcome = search_(question.cluster, question.excluded, quiet);
  if (outcome.plan && before != nullptr)
    outcome.plan = keep_places(*std::move(outcome.plan), *before, question.excluded, options_of(*outcome.plan).cost);
  return outcome;
}

MemberPlan MemberPlans::plan(const std::set<std::string>& lost, bool quiet, const ServePlan* before) const {
  const Question asked = question(lost);
  if (before != nullptr) {
    const std::lock_guard lock(mutex_);
    for (const Spare& spare : spares_)
      if (spare.question == asked && spare.before.stages == before->stages) return {spare.outcome, true};
  }
  return {answer(asked, quiet, before)};
}

double MemberPlans::tokens_per_s(ServePlan plan) const {
  Cluster cluster = cluster_of_members(members_.list());
  for (const Device& device : plan.cluster.devices)
    if (std::ranges::find(cluster.devices, device.name, &Device::name) == cluster.devices.end())
      return plan.predicted.tokens_per_s;
  plan.cluster = std::move(cluster);
  predict(plan, options_of(plan).cost);
  return plan.predicted.tokens_per_s;
}

void MemberPlans::set_slow(std::map<std::string, double> factors) {
  const std::lock_guard lock(mutex_);
  slow_ = std::move(factors);
}

void MemberPlans::make_spares(const ServePlan& plan, const std::set<std::string>& lost, const std::stop_token& stop) {
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

std::vector<Loss> MemberPlans::losses() const {
  const std::lock_guard lock(mutex_);
  std::vector<Loss> all;
  for (const Spare& spare : spares_) all.push_back(loss_of(spare.name, spare.before, spare.outcome.plan));
  return all;
}

}  // namespace motley::cli
