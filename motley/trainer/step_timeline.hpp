// The time line of a step: as the workers report it, and as the plan's price predicts it.
#pragma once

#include <vector>

#include "motley/trainer/layout/train_messages.hpp"
#include "motley/trainer/record/run_record.hpp"

namespace motley {

// `answers` by worker. Without a prediction where the plan cannot be priced.
StepTimeline step_timeline(const TrainPlan& plan, const StepMetrics& metrics,
                           const std::vector<TrainStepDone>& answers);

}  // namespace motley
