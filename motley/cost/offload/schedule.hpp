// An offloading schedule, event by event: what the closed form of offload_cost.hpp is held against.
//
// A pass goes through the layers; in each layer all micro-batches compute before the next layer begins. Weights that
// are away go through two buffers, keys and values of one micro-batch likewise; with `staged` what comes from disk goes
// through two buffers in host memory first. Disk, upload, download, device and the host's processors each do one thing
// at a time, in the order of the schedule.
#pragma once

#include <cstdint>
#include <vector>

namespace motley {

// Seconds; 0: the step does not happen.
struct ScheduledLayer {
  double weight_read = 0;    // from disk, of the whole layer
  double weight_upload = 0;  // from host memory
  double kv_read = 0;        // of one micro-batch, as all below
  double kv_upload = 0;
  double compute = 0;
  double host_attention = 0;  // after half of `compute`, and before the other half
  double kv_download = 0;
  double kv_write = 0;
};

struct ScheduleResult {
  double first_pass_s = 0;  // until the first pass is done
  double total_s = 0;
  double pass_s = 0;                     // between the ends of the last two passes; of the first where there is one
  std::int64_t weight_loads = 0;         // layers whose weights were moved
  std::int64_t most_weight_buffers = 0;  // that were in use at once
};
ScheduleResult run_schedule(const std::vector<ScheduledLayer>& layers, std::int64_t batches, std::int64_t passes,
                            bool staged = false);

}  // namespace motley
