// What the loss of a machine or a device would cost: of a plan (`explain --if-lost`) and of a deployment (`status`).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

struct PossibleLoss {
  std::string name;  // "box", or "box/1"
  std::set<std::string> devices;
};
// Each machine that the plan uses, then each device of those of which it uses several.
std::vector<PossibleLoss> possible_losses(const ServePlan& plan);

struct LossImpact {
  struct Rest {
    double tokens_per_s = 0;
    std::int64_t loaded_bytes = 0;  // of layers, by the devices that are left
  };
  std::string name;
  std::optional<Rest> rest;  // none: nothing fits
};
LossImpact loss_impact(const std::string& name, const ServePlan& before, const std::optional<ServePlan>& after);
// Of each possible loss: makes a plan for what is left, as this one was made.
std::vector<LossImpact> loss_impacts(const ServePlan& plan);

// {"machine" or "device", "fits", "tokens_per_s", "loaded_bytes"} each.
Value loss_impacts_value(const std::vector<LossImpact>& losses);

}  // namespace motley
