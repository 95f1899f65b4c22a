// One training step through pipelines, event by event: which stage computes which micro-batch when.
//
// A stage runs one pass at a time, in the order of its schedule. A pass begins when its input has arrived, of which
// gradients of weights that have waited need none; boundaries are sent while the stage goes on, or keep both ends busy,
// one message at a time on a link, first come, first served.
// Exact for these rules; without hops GPipe equals the flow shop of identical jobs, sum_s c_s + (m - 1) max_s c_s, for
// each direction.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/plan/train_plan.hpp"

namespace motley {

// A message from a stage to its neighbour. Hops with the same number share a link, also between pipelines.
struct PipelineHop {
  double busy_s = 0;     // of the link
  double latency_s = 0;  // on top, until it arrives
  int link = own_link;
  static constexpr int own_link = -1;
};

struct PipelineStage {
  double forward_s = 0;   // of one micro-batch
  double backward_s = 0;  // with what is computed again
  PipelineHop send = {};  // of its output to the next stage
  PipelineHop back = {};  // of its input's gradient to the stage before
  // At the end of backward_s: gradients of weights, for which no other stage waits. The input's gradient leaves before
  // them where hops overlap; with a weight_lag() they are passes of their own.
  double weights_s = 0;
};

// What stages do while a message is on its way.
enum class HopMode {
  overlapped,  // both go on
  // Both wait: the sender goes on when its message has arrived, and a message leaves when the receiver's next pass
  // needs it and the receiver does nothing else but wait, be it to send.
  blocking
};

struct PipelineLoad {
  std::vector<PipelineStage> stages;
  std::int64_t micro_batches = 1;
  HopMode hops = HopMode::overlapped;
};

struct PipelinePass {
  std::size_t pipeline = 0, stage = 0;
  std::int64_t micro_batch = 0;
  PassKind kind = PassKind::forward;
  double start_s = 0, end_s = 0;
};

struct PipelineTimes {
  double makespan_s = 0;
  std::vector<double> busy_s;                // of every stage
  std::vector<double> gradients_complete_s;  // of every stage
};

// Of every pipeline. `passes`, where given, receives every pass in the order of their starts. Throws an internal error
// where a pipeline has no stages or no micro-batches.
std::vector<PipelineTimes> run_pipelines(PipelineSchedule schedule, const std::vector<PipelineLoad>& pipelines,
                                         std::vector<PipelinePass>* passes = nullptr);

// No run of this pipeline is shorter. Of every stage s: with w micro-batches in flight behind it, one in w waits for
// the one before to come back from the last stage; and what then remains passes every stage k behind it one after the
// other.
double least_makespan_s(PipelineSchedule schedule, const PipelineLoad& pipeline);

}  // namespace motley
