// What workers are told of a plan: what their part needs. So a launch does not grow with what others compute.
#pragma once

#include "motley/plan/serve_plan.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// For the workers of one stage: it, the stages before and behind it, and its machines. Every route keeps its number;
// the path of one that does not pass the stage is empty.
ServePlan part_of(const ServePlan& plan, const Stage& stage);

// For every worker, since all of them exchange gradients: without links, measurements and predictions.
TrainPlan part_of(const TrainPlan& plan);

}  // namespace motley
