// For tests: GenModel's constants of the 10 Gbit/s network of its paper.
#pragma once

#include "motley/cost/collective/genmodel.hpp"

namespace motley {

constexpr GenModelConstants p10{5e-5, 8e-10, 1e-10, 1e-10, 5e-11, 9};

}  // namespace motley
