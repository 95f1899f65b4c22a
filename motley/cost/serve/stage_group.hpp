// A stage of a plan, prepared for pricing.
#pragma once

#include "motley/cost/form/group.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

TensorGroup stage_group(const ServePlan& plan, const Stage& stage);

}  // namespace motley
