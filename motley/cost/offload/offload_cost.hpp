// What an offloading stage costs: the form `motley` of one device with its host's memory and disk.
//
// The schedule is the diagonal one: continuous batching over layers that stream by. A pass takes `batches`
// micro-batches of `batch` sequences through all layers; each layer's weights are read once per pass. Sequences are at
// different tokens: finished ones leave, and new ones bring as much of their prompts as a micro-batch has room for.
//
// Every resource works through what a pass asks of it, all at once: the pass takes as long as the busiest. `waiting`
// counts the device with what it waits for inside a layer. docs/planner-offload.md has the formulas;
// cost/offload/schedule.hpp runs the schedule event by event to check them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "motley/cost/serve/step.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/plan/offload.hpp"

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
template <>
const std::vector<EnumName<Resource>>& enum_names<Resource>();

using ResourceSeconds = std::array<double, resource_count>;

// How many sequences a pass serves, in micro-batches.
struct PassShape {
  std::int64_t batch = 1;
  std::int64_t batches = 1;
  std::int64_t prompt_chunk = 1;  // tokens of prompts per micro-batch
  bool cpu_attention = false;
  bool operator==(const PassShape&) const = default;
};

// What a micro-batch does in a pass, on average.
struct PassLoad {
  StepLoad step;
  double finished = 0;  // requests
  double decodes = 0;   // tokens, one per sequence
  double prompts = 0;   // tokens
  double passes = 0;    // of one request
};

// Homes of layers, and of micro-batches' hidden states.
struct PlacedCounts {
  TierCounts weights, kv, activations;
};

// Seconds per pass, by resource: what every placement takes, and what one layer (or micro-batch) takes more for its
// home. All figures are linear in the counts.
struct PassSeconds {
  ResourceSeconds fixed = {};
  std::array<ResourceSeconds, 3> weights = {}, kv = {}, activations = {};  // by Tier
  ResourceSeconds of(const PlacedCounts& counts) const;
};

struct OffloadPrice {
  ResourceSeconds seconds = {};
  double pass_s = 0;
  Resource binding = Resource::device;
  double tokens_per_s = 0;
  double latency_s = 0;  // of one request
};

class OffloadCost {
 public:
  // Throws an input error where the device type lacks what a price needs. Cluster and model must outlive it.
  OffloadCost(const CostOptions& options, const Cluster& cluster, const Model& model, int device, DType weight_type,
              DType kv_type, double prompt_tokens, double output_tokens);

  // Tokens of prompts per micro-batch that are worth a try, from the fewest to a whole prompt; one where those of a
  // pass are more than a prompt.
  std::vector<std::int64_t> chunks(std::int64_t batch) const;
  PassLoad load(const PassShape& shape) const;
  PassSeconds seconds(const PassShape& shape) const;
  OffloadPrice price(const PassShape& shape, const PassSeconds& seconds, const PlacedCounts& counts) const;
  // Of so many sequences in flight, each at its own token: with a margin.
  std::int64_t kv_tokens(std::int64_t sequences, std::int64_t block_tokens) const;

  const MemoryTiers& tiers() const { return tiers_; }
  double layer_bytes() const { return layer_bytes_; }

 private:
  const Architecture& arch_;
  StepCost step_;
  TensorGroup group_;
  MemoryTiers tiers_;
  double prompt_tokens_, output_tokens_;
  double layer_bytes_, kv_token_bytes_, hidden_bytes_, attention_bytes_;
};

// Of a plan as it is written.
PassShape shape_of(const OffloadPlan& plan);
PlacedCounts counts_of(const OffloadPlan& plan);
OffloadCost offload_cost(const OffloadPlan& plan, const CostOptions& options);
OffloadPrice price_offload(const OffloadPlan& plan, const CostOptions& options);
// For the simulator: a micro-batch's part of a pass. Streaming takes the same whatever it carries; the rest grows with
// its tokens.
PipelineTime offload_pipeline(const OffloadPlan& plan, const CostOptions& options);
// The pass as a tree: the largest of its resources, each by cause.
Term explain_offload(const OffloadPlan& plan, const CostOptions& options);

}  // namespace motley
