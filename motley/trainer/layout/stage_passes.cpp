#include "motley/trainer/layout/stage_passes.hpp"

namespace motley {

std::vector<StagePass> stage_passes(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                                    std::int64_t micro_batches) {
  const std::int64_t most = micro_batches_in_flight(schedule, stage, stages, micro_batches);
  const std::int64_t lag = weight_lag(schedule, stage);
  std::vector<StagePass> passes;
  std::int64_t forwards = 0, backwards = 0, weights = lag > 0 ? 0 : micro_batches;
  while (backwards < micro_batches || weights < micro_batches)
    if (weights < micro_batches && (backwards - weights > lag || backwards == micro_batches))
      passes.push_back({weights++, PassKind::weights});
    else if (forwards < micro_batches && forwards - backwards < most)
      passes.push_back({forwards++, PassKind::forward});
    else
      passes.push_back({backwards++, PassKind::backward});
  return passes;
}

}  // namespace motley
