#include "motley/planner/serve/if_lost.hpp"

#include <map>

#include "motley/planner/serve/plan_again.hpp"
#include "motley/planner/serve/replan.hpp"

namespace motley {

std::vector<PossibleLoss> possible_losses(const ServePlan& plan) {
  std::map<std::string, std::set<std::string>> used;
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices) used[machine_of(device)].insert(device);
  std::vector<PossibleLoss> losses;
  for (const auto& [machine, devices] : used) {
    losses.push_back({machine, {}});
    for (const Device& device : plan.cluster.devices)
      if (machine_of(device.name) == machine) losses.back().devices.insert(device.name);
  }
  for (const auto& [machine, devices] : used)
    if (devices.size() > 1)
      for (const std::string& device : devices) losses.push_back({device, {device}});
  return losses;
}

LossImpact loss_impact(const std::string& name, const ServePlan& before, const std::optional<ServePlan>& after) {
  if (!after) return {name, {}};
  return {name, LossImpact::Rest{after->predicted.tokens_per_s, weight_moves(before, *after).loaded_bytes}};
}

std::vector<LossImpact> loss_impacts(const ServePlan& plan) {
  ServeOptions options = options_of(plan);
  std::vector<LossImpact> losses;
  for (const PossibleLoss& loss : possible_losses(plan)) {
    options.excluded.assign(loss.devices.begin(), loss.devices.end());
    std::optional<ServePlan> after;
    if (loss.devices.size() < plan.cluster.devices.size())
      after = plan_serve(plan.cluster, plan.model, plan.workload, options).plan;
    if (after) after = keep_places(*std::move(after), plan, options.excluded, options.cost);
    losses.push_back(loss_impact(loss.name, plan, after));
  }
  return losses;
}

Value loss_impacts_value(const std::vector<LossImpact>& losses) {
  Value::Array all;
  for (const LossImpact& loss : losses) {
    const char* what = loss.name.find('/') == std::string::npos ? "machine" : "device";
    Value value = Value::object({{what, loss.name}, {"fits", loss.rest.has_value()}});
    if (loss.rest) {
      value.set("tokens_per_s", loss.rest->tokens_per_s);
      value.set("loaded_bytes", loss.rest->loaded_bytes);
    }
    all.push_back(std::move(value));
  }
  return Value(std::move(all));
}

}  // namespace motley
