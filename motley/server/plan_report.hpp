// What really runs, for /plan: the plan, and beside its predictions what the workers report.
#pragma once

#include "motley/plan/serve.hpp"
#include "motley/serving/driver.hpp"

namespace motley {

Value plan_report(const DriverStatus& status);

}  // namespace motley
