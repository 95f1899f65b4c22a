// An offloading schedule, event by event: what the closed form of offload_cost.hpp is held against.
//
// A pass goes through the layers; in each layer all micro-batches compute before the next layer begins. Weights that
// are away go through two buffers, and so do keys and values of one micro-batch; with `staged` what comes from disk
// goes through two buffers in host memory first. Disk, upload, download, device and the host's processors each do one
// thing at a time, in the order of the schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
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

namespace {

constexpr std::size_t buffers = 2;

// Does one thing at a time, in the order it is asked.
class ScheduledServer {
 public:
  // Returns when it is done.
  double serve(double ready, double seconds) {
    if (seconds <= 0) return ready;
    free_ = std::max(free_, ready) + seconds;
    return free_;
  }

 private:
  double free_ = 0;
};

// When the buffer that is filled next was emptied.
class Ring {
 public:
  double next_free() const { return released_.size() < buffers ? 0 : released_[released_.size() - buffers]; }
  void use(double from, double until) {
    released_.push_back(until);
    spans_.push_back({from, until});
  }
  std::int64_t most_at_once() const {
    std::int64_t most = 0;
    for (const auto& [start, ignored] : spans_) {
      std::int64_t used = 0;
      for (const auto& [from, until] : spans_) used += from <= start && start < until ? 1 : 0;
      most = std::max(most, used);
    }
    return most;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(spans_.size()); }

 private:
  std::vector<double> released_;
  std::vector<std::pair<double, double>> spans_;
};

}  // namespace

inline ScheduleResult run_schedule(const std::vector<ScheduledLayer>& layers, std::int64_t batches, std::int64_t passes,
                                   bool staged) {
  const auto count = static_cast<std::size_t>(batches);
  ScheduledServer disk_reads, disk_writes, upload, download, device, processors;
  Ring weights, kv, staged_weights, staged_kv;
  std::vector<double> reached(count, 0);  // when a micro-batch's hidden states are there
  std::vector<std::vector<double>> stored(layers.size(), std::vector<double>(count, 0));
  ScheduleResult result;
  double previous_end = 0;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    for (std::size_t j = 0; j < layers.size(); ++j) {
      const ScheduledLayer& layer = layers[j];
      const bool streamed = layer.weight_read > 0 || layer.weight_upload > 0;
      const double buffer_free = weights.next_free();
      double weights_there = 0;
      // From disk by host memory to the device: both buffers must be free.
      const auto fetched = [&](Ring& staging, double start, double device_free, double read_s, double upload_s) {
        if (!staged || read_s <= 0)
          return upload.serve(disk_reads.serve(std::max(start, device_free), read_s), upload_s);
        const double from = std::max(start, staging.next_free());
        const double read = disk_reads.serve(from, read_s);
        const double there = upload.serve(std::max(read, device_free), upload_s);
        staging.use(from, there);
        return there;
      };
      if (streamed) weights_there = fetched(staged_weights, 0, buffer_free, layer.weight_read, layer.weight_upload);
      const bool moved = layer.kv_read > 0 || layer.kv_upload > 0;
      // The first half of micro-batch k + 1 comes before the second half of k, which waits for the host.
      std::vector<double> attended(count);
      const auto first_half = [&](std::size_t k) {
        double kv_there = 0;
        const double kv_free = kv.next_free();
        if (moved) kv_there = fetched(staged_kv, stored[j][k], kv_free, layer.kv_read, layer.kv_upload);
        const double ready = std::max({weights_there, kv_there, reached[k]});
        const double half = layer.host_attention > 0 ? layer.compute / 2 : layer.compute;
        attended[k] = processors.serve(device.serve(ready, half), layer.host_attention);
        if (moved) kv.use(kv_free, attended[k]);
      };
      const auto second_half = [&](std::size_t k) {
        reached[k] = layer.host_attention > 0 ? device.serve(attended[k], layer.compute / 2) : attended[k];
        stored[j][k] = disk_writes.serve(download.serve(attended[k], layer.kv_download), layer.kv_write);
      };
      for (std::size_t k = 0; k < count; ++k) {
        first_half(k);
        if (k > 0) second_half(k - 1);
      }
      second_half(count - 1);
      if (streamed) weights.use(buffer_free, reached[count - 1]);
    }
    const double end = *std::max_element(reached.begin(), reached.end());
    if (pass == 0) result.first_pass_s = end;
    result.pass_s = end - previous_end;
    previous_end = end;
  }
  result.total_s = previous_end;
  result.weight_loads = weights.count();
  result.most_weight_buffers = weights.most_at_once();
  return result;
}

}  // namespace motley
