// What a training plan costs: any valid plan, made by a planner or by hand.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/form.hpp"
#include "motley/cost/term.hpp"
#include "motley/plan/train.hpp"

namespace motley {

// A figure beside the total, for people: "the worst whole pipeline".
struct TrainRemark {
  std::string name;
  double seconds = 0;
};

struct TrainCost {
  double iteration_s = 0;
  double tokens_per_s = 0;  // 0 where the form does not count all of a step
  double mfu = 0;           // model FLOPs per second as a share of the working devices' peak; 0 likewise
  Term tree;                // of iteration_s
  std::vector<TrainRemark> remarks;
};

// Throws an input error where the form is unknown, a setting is not the form's, or the form cannot express the plan.
// The plan must be sound (verify).
TrainCost price_train(const TrainPlan& plan, const CostOptions& options);

// The forms that price training plans.
const std::vector<std::string>& train_forms();

// Throws an input error where the form is unknown or has no such setting.
void check_train_settings(const CostOptions& options);

}  // namespace motley
