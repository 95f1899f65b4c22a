// The solvers behind solve_milp(): each takes a checked model and says what it found, to be checked in turn.
#pragma once

#include "motley/solve/milp.hpp"

namespace motley {

MilpAnswer solve_built_in(const MilpModel& model, const MilpOptions& options);
#ifdef MOTLEY_WITH_HIGHS
MilpAnswer solve_highs(const MilpModel& model, const MilpOptions& options);
#endif

}  // namespace motley
