// What the planner of offloading is asked, and what it answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/cost/form/form.hpp"
#include "motley/plan/offload_plan.hpp"

namespace motley {

struct OffloadOptions {
  CostOptions cost = {};
  std::string device = {};                        // default: the one that gives the best plan
  std::optional<DType> weight_type = {};          // default: the model's
  std::optional<DType> kv_type = {};              // default: the model's
  std::optional<double> most_kl = {};             // chooses the types that are not given under this bound
  std::optional<double> most_latency_s = {};      // of a request
  std::optional<double> least_tokens_per_s = {};  // then the plan with the least latency that reaches it
  bool weights_only = false;                      // keys, values and hidden states stay on the device
  std::int64_t max_batch = 1024;                  // sequences of a micro-batch
  std::int64_t max_batches = 64;
  std::int64_t block_tokens = 16;
  std::uint64_t seed = 0;  // recorded; the search draws no random numbers
  double deadline_s = 10;
};

struct OffloadOutcome {
  std::optional<OffloadPlan> plan;
  std::string reason, hint;  // where there is none
};

}  // namespace motley
