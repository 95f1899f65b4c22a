// What really runs, for /plan: the plan with its predictions, and what the workers report.
#pragma once

#include "motley/plan/serve_plan.hpp"
#include "motley/serving/driver.hpp"

namespace motley {

Value running_plan(const DriverStatus& status);

}  // namespace motley
