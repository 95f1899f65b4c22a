// Plans of kind "offload" in the published form `flexgen`.
#pragma once

#include "motley/cost/form/term.hpp"
#include "motley/cost/published/flexgen.hpp"
#include "motley/plan/offload_plan.hpp"

namespace motley {

// Throws an input error where the plan's machine has no host memory.
FlexgenCase flexgen_case(const OffloadPlan& plan, const CostOptions& options);
FlexgenPolicy flexgen_policy(const OffloadPlan& plan);
// Seconds of a block of batch x batches sequences, from prompts to last tokens.
Term explain_flexgen(const OffloadPlan& plan, const CostOptions& options);

}  // namespace motley
