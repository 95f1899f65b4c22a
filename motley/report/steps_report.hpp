// How long the steps of a plan's stages take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/serve_cost.hpp"

namespace motley {

// A stage that offloads, in steps that decode this many sequences.
struct StreamedSteps {
  const Stage* stage = nullptr;
  std::int64_t sequences = 1;
  double step_s = 0;
  Resource binding = Resource::device;
};

// Of one step on each stage: what the scheduler goes by (docs/concepts/steps.md).
struct StageSteps {
  std::string route, stage;
  double one_token_s = 0;
  double sequences_s = 0;  // a decode of as many sequences as a step takes
  double full_s = 0;       // a chunk of a prompt, of as many tokens
  std::optional<double> tokens_at_no_cost;
  std::optional<StreamedSteps> streamed = {};
};

// `cost` is the plan's by these options.
std::vector<StageSteps> steps_of(const ServePlan& plan, const ServeCost& cost, const CostOptions& options);

std::string steps_report(const std::vector<StageSteps>& steps, const StepLimits& most);
Value steps_json(const std::vector<StageSteps>& steps);

}  // namespace motley
