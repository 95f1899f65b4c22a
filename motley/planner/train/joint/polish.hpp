// The last steps of the training planner, on whole layouts that are priced event by event: single layers, strategies of
// single stages, sequences and micro-batches change as long as the step gets shorter.
#pragma once

#include "motley/base/clock.hpp"
#include "motley/planner/train/joint/strategy_tables.hpp"

namespace motley {

// Whether every stage fits the memory of its devices, by the arithmetic that verify() uses.
bool fits_memory(const TrainProblem& problem, const TrainLayout& layout);

struct Polished {
  TrainLayout layout;
  double iteration_s = 0;
  std::int64_t evaluated = 0;
};
// Never longer than the layout given, which fits.
Polished polish(const TrainProblem& problem, TrainLayout layout, Instant deadline);

}  // namespace motley
