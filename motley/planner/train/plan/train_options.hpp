// What the planners of training are asked, and what they answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/cost/form/form.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

struct TrainOptions {
  CostOptions cost = {};
  Profile profile = {};
  std::optional<std::int64_t> stages = {}, replicas = {};  // fix the grid
  double deadline_s = 10;
  std::uint64_t seed = 0;
  int threads = 1;
  double effort = 1;  // scales the number of local moves
};

struct TrainOutcome {
  std::optional<TrainPlan> plan;
  std::string reason, hint;  // where there is none
};

}  // namespace motley
