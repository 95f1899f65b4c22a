// The plan of kind "offload": one device that uses its host's memory and disk as its own, for throughput.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"

namespace motley {

struct OffloadPrediction {
  double tokens_per_s = 0;             // generated tokens by the time of all work, prompts included
  double latency_s = 0;                // of one request of mean lengths, from its first pass to its last
  std::optional<double> kl;            // as a serving plan has it
  std::map<std::string, double> busy;  // share of the time that each resource works; the largest binds
  std::map<std::string, DeviceMemory> memory_bytes;
  bool operator==(const OffloadPrediction&) const = default;
};
Schema<OffloadPrediction> schema_of(Bound<OffloadPrediction>);

struct OffloadPlan {
  static constexpr PlanKind kind{"offload", "motley plan offload"};

  Model model;
  Cluster cluster;
  Workload workload;
  Profile profile;
  std::string device;             // "box/0"
  std::int64_t batch = 1;         // sequences of a micro-batch
  std::int64_t batches = 1;       // micro-batches that share one pass over the weights
  std::int64_t kv_tokens = 0;     // room for keys and values, tokens per layer, of all sequences
  std::int64_t prompt_chunk = 0;  // tokens of prompts in a micro-batch, in addition to its sequences
  TierShares weights = {}, kv = {}, activations = {};
  DType weight_type = DType::bf16;
  DType kv_type = DType::bf16;
  bool cpu_attention = false;
  std::int64_t draft_tokens = 0;
  std::int64_t block_tokens = 16;  // of a KV block
  OffloadPrediction predicted;
  std::vector<UnusedDevice> unused;
  SearchRecord search;
  bool operator==(const OffloadPlan&) const = default;
};
Schema<OffloadPlan> schema_of(Bound<OffloadPlan>);

// The same as a serving plan of one stage "r0/s0" and one route "r0", which is what runs: max_sequences is `batch`,
// max_tokens `batch` + `prompt_chunk`. Throws an input error where the shares are not whole layers or micro-batches.
ServePlan serving_plan(const OffloadPlan& plan);

// Checks a plan without knowing any planner. One that a published form priced (`search.cost`) may have shares that are
// not whole layers: it is a policy to compare with and does not run. Empty: nothing wrong.
std::vector<Violation> verify(const OffloadPlan& plan);

}  // namespace motley
