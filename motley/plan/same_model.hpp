// Whether a plan can run with the weights of a model: one for another model would fail late, tensor by tensor.
#pragma once

#include <string>

#include "motley/plan/serve_plan.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// Throw an input error unless it can. `named`: the model, as its user calls it.
void require_same_model(const ServePlan& plan, const Model& model, const std::string& named);
void require_same_model(const TrainPlan& plan, const Model& model, const std::string& named);

}  // namespace motley
