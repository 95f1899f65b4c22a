// What memory is worth in a training plan: the shadow price of every stage's budget, in the form `motley`.
#pragma once

#include <vector>

#include "motley/cost/train/train_cost.hpp"

namespace motley {

// Seconds of a step that a stage would work less for one more byte on each of its devices, with the layers that it has;
// by replica and stage. The slope of the chain kernel's relaxation: 0 where memory does not bind. A step gets shorter
// by it where the stage sets the pace.
std::vector<std::vector<double>> memory_prices_s_per_byte(const TrainPlan& plan, const CostOptions& options);

}  // namespace motley
