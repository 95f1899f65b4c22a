#include "motley/cli/losses.hpp"

#include <fmt/format.h>

#include <map>

#include "motley/base/units.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/report/table.hpp"

namespace motley::cli {

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

Loss loss_of(const std::string& name, const ServePlan& before, const std::optional<ServePlan>& after) {
  if (!after) return {name, {}};
  return {name, Loss::Rest{after->predicted.tokens_per_s, weight_moves(before, *after).loaded_bytes}};
}

Value losses_value(const std::vector<Loss>& losses) {
  Value::Array all;
  for (const Loss& loss : losses) {
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

std::string losses_report(const std::vector<Loss>& losses, double tokens_per_s) {
  if (losses.empty()) return {};
  Table table({{"if lost"}, {"tokens/s", Align::right}, {"of now", Align::right}, {"to load", Align::right}});
  for (const Loss& loss : losses) {
    if (!loss.rest)
      table.add({loss.name, "does not fit"});
    else
      table.add({loss.name, fmt::format("{:.4g}", loss.rest->tokens_per_s),
                 percent(loss.rest->tokens_per_s / tokens_per_s),
                 human_bytes(static_cast<double>(loss.rest->loaded_bytes))});
  }
  return table.render("");
}

}  // namespace motley::cli
