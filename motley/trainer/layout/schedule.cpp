#include "motley/trainer/layout/schedule.hpp"

namespace motley {

std::vector<StagePass> stage_passes(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                    std::int64_t micro_batches) {
  const std::int64_t most = micro_batches_in_flight(schedule, stage, stages, micro_batches);
  std::vector<StagePass> passes;
  std::int64_t forwards = 0, backwards = 0;
  while (backwards < micro_batches)
    if (forwards < micro_batches && forwards - backwards < most)
      passes.push_back({forwards++, false});
    else
      passes.push_back({backwards++, true});
  return passes;
}

}  // namespace motley
