// What a training plan costs: any valid plan, made by a planner or by hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/cost/form/train_form.hpp"
#include "motley/cost/form/uncertainty.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// Throws an input error where the form is unknown, a setting is not the form's, or the form cannot express the plan.
// The plan must be sound (verify).
TrainCost price_train(const TrainPlan& plan, const CostOptions& options);

// Device types that rest on the measurements of others, and what the plan's tokens/s then are. None in published forms.
std::vector<TypeUncertainty> uncertainties(const TrainPlan& plan, const CostOptions& options);
// Where the time of a step lies, all those types together at either end; none where all are measured.
std::optional<FigureRange> iteration_range(const TrainPlan& plan, const CostOptions& options);

// The forms that price training plans.
const std::vector<std::string>& train_forms();

// Throws an input error where the form is unknown or has no such setting.
void check_train_settings(const CostOptions& options);

}  // namespace motley
