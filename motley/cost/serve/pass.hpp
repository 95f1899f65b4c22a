// What one pass of a stage that offloads takes: all its layers once, of which some stream by from host memory or disk.
//
// A pass takes micro-batches through all layers; each layer's weights are read once per pass. Every resource works
// through what the pass asks of it, all at once: the pass takes as long as the busiest. `waiting` counts the device
// with what it waits for inside a layer. docs/concepts/planner-offload.md has the formulas; offload/schedule_test.hpp
// runs the schedule event by event to check them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "motley/cost/serve/step.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

enum class Resource {
  device,       // computes
  processors,   // the host's: attention over keys and values in host memory
  upload,       // from host memory to the device
  download,     // from the device to host memory
  disk_read,    // as if nothing were written
  disk_write,   // as if nothing were read
  disk,         // both directions together
  host_memory,  // bandwidth, shared by processors, devices and disk
  waiting       // the device, and its waits for keys and values or for attention on the host
};
constexpr std::size_t resource_count = 9;
EnumNames<Resource> names_of(Bound<Resource>);

using ResourceSeconds = std::array<double, resource_count>;
Resource busiest(const ResourceSeconds& seconds);

// Seconds per pass, by resource: what every placement takes, and what one layer (or micro-batch) takes more for its
// home. All figures are linear in the counts.
struct PassSeconds {
  ResourceSeconds fixed = {};
  std::array<ResourceSeconds, 3> weights = {}, kv = {}, activations = {};  // by Tier
  ResourceSeconds of(const PlacedCounts& counts) const;
};

// Of a pass with `micro_batches`, each with so much to do; at most stage.batches. The counts are not looked at but for
// the number of layers.
PassSeconds pass_seconds(const StepCost& cost, const TensorGroup& group, StageEnds ends, const StreamedStage& stage,
                         const StepLoad& micro_batch, std::int64_t micro_batches);

// A step of a scheduler as a pass: as few micro-batches of at most `max_tokens` as it needs, no more than `batches`.
struct PassCut {
  StepLoad each;
  std::int64_t micro_batches = 1;
};
PassCut cut_step(const StepLoad& step, std::int64_t batches, std::int64_t max_tokens);

// The pass as a tree, `times` over: the largest of its resources, each by cause. `what` is a micro-batch.
Term explain_pass(std::string name, const PassSeconds& pass, const PlacedCounts& counts, double times,
                  const std::string& what, std::string note);

// The time of a stage's steps, whatever they carry. What it is made with must outlive it.
class PassCost {
 public:
  // `max_tokens`: of a micro-batch.
  PassCost(const StepCost& cost, TensorGroup group, StageEnds ends, StreamedStage stage, std::int64_t max_tokens)
      : cost_(cost), group_(std::move(group)), ends_(ends), stage_(std::move(stage)), max_tokens_(max_tokens) {}
  ResourceSeconds resources(const StepLoad& step) const;
  double seconds(const StepLoad& step) const;

 private:
  StepCost cost_;
  TensorGroup group_;
  StageEnds ends_;
  StreamedStage stage_;
  std::int64_t max_tokens_;
};

// What each of this many devices that offload at once has of its machine's tiers: an equal part of what they share. The
// rates of a processor are its own.
MemoryTiers shared_among(MemoryTiers tiers, std::int64_t devices);

// A stage of a plan that offloads. Throws an input error for shares that are not whole layers or micro-batches.
StreamedStage streamed_stage(const ServePlan& plan, const Stage& stage);

// What a step may hold where this many micro-batches share a pass; those on a route.
StepLimits step_limits(StepLimits micro_batch, std::int64_t batches);
std::int64_t batches_on(const ServePlan& plan, const Route& route);

}  // namespace motley
