// What a training plan costs: any valid plan, made by a planner or by hand.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/train_form.hpp"
#include "motley/plan/train.hpp"

namespace motley {

// Throws an input error where the form is unknown, a setting is not the form's, or the form cannot express the plan.
// The plan must be sound (verify).
TrainCost price_train(const TrainPlan& plan, const CostOptions& options);

// The forms that price training plans.
const std::vector<std::string>& train_forms();

// Throws an input error where the form is unknown or has no such setting.
void check_train_settings(const CostOptions& options);

}  // namespace motley
