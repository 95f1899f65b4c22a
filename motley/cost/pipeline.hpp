// One training step through a pipeline, event by event: which stage computes which micro-batch when.
//
// A stage runs one pass at a time, in the order of its schedule. A pass begins when its input has arrived; boundaries
// are sent while the stage goes on, one message at a time on a link in each direction. Exact for these rules; without
// hops GPipe equals the flow shop of identical jobs, sum_s c_s + (m - 1) max_s c_s, for each direction.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/plan/train.hpp"

namespace motley {

struct PipelineStage {
  double forward_s = 0;   // of one micro-batch
  double backward_s = 0;  // with what is computed again
  double send_s = 0;      // of its output to the next stage
  double return_s = 0;    // of its input's gradient to the stage before
};

struct PipelinePass {
  std::size_t stage = 0;
  std::int64_t micro_batch = 0;
  bool backward = false;
  double start_s = 0, end_s = 0;
};

struct PipelineTimes {
  double makespan_s = 0;
  std::vector<double> busy_s;               // of every stage
  std::vector<double> last_backward_end_s;  // when a stage's gradients are complete
};

// `passes`, where given, receives every pass in no particular order. Throws an internal error without stages or
// micro-batches.
PipelineTimes run_pipeline(PipelineSchedule schedule, const std::vector<PipelineStage>& stages,
                           std::int64_t micro_batches, std::vector<PipelinePass>* passes = nullptr);

}  // namespace motley
