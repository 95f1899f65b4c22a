// In which order a stage runs the passes of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/plan/train_plan.hpp"

namespace motley {

struct StagePass {
  std::int64_t micro_batch = 0;
  PassKind kind = PassKind::forward;
  bool operator==(const StagePass&) const = default;
};

// The order that the plan is priced with (cost/train/pipeline.hpp): forward passes until as many micro-batches are in
// flight as the schedule allows, from then on a backward pass whenever there is one to run. With a weight_lag() those
// of the weights come by themselves, as many micro-batches behind, and the last ones at the end.
std::vector<StagePass> stage_passes(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                    std::int64_t micro_batches);

}  // namespace motley
