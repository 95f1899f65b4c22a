// What an offloading stage costs: the form `motley` of one device with its host's memory and disk.
//
// The schedule is the diagonal one: continuous batching over layers that stream by. A pass takes `batches`
// micro-batches of `batch` sequences through all layers (cost/serve/pass.hpp). Sequences are at different tokens:
// finished ones leave, and new ones bring as much of their prompts as a micro-batch has room for.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/plan/offload_plan.hpp"

namespace motley {

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
  double chunks = 0;    // that these are in
  double passes = 0;    // of one request
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
  // Of this many sequences in flight, each at its own token: with a margin.
  std::int64_t kv_tokens(std::int64_t sequences, std::int64_t block_tokens) const;

  const MemoryTiers& tiers() const { return tiers_; }

 private:
  // Of a micro-batch with this many chunks of prompts; its other sequences decode.
  StepLoad step_with(const PassLoad& load, double chunks) const;

  LayerCounts kinds_;  // of all layers
  StepCost step_;
  TensorGroup group_;
  MemoryTiers tiers_;
  double prompt_tokens_, output_tokens_;
};

// Of a plan as it is written.
PassShape shape_of(const OffloadPlan& plan);
PlacedCounts counts_of(const OffloadPlan& plan);
OffloadCost offload_cost(const OffloadPlan& plan, const CostOptions& options);
OffloadPrice price_offload(const OffloadPlan& plan, const CostOptions& options);
// The pass as a tree: the largest of its resources, each by cause.
Term explain_offload(const OffloadPlan& plan, const CostOptions& options);

}  // namespace motley
