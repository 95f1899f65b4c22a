// Plans of kind "offload": how one device, its host's memory and its disk hold a model, and how many sequences share a
// pass over it.
//
//   const OffloadOutcome outcome = plan_offload(cluster, model, workload, {});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/cost/form/form.hpp"
#include "motley/plan/offload.hpp"

namespace motley {

struct OffloadOptions {
  CostOptions cost = {};
  std::string device = {};                        // default: the one that gives the best plan
  std::optional<DType> weight_type = {};          // default: the model's
  std::optional<DType> kv_type = {};              // default: likewise
  std::optional<double> most_kl = {};             // chooses the type of weights under this bound
  std::optional<double> most_latency_s = {};      // of a request
  std::optional<double> least_tokens_per_s = {};  // then the plan with the least latency that reaches it
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

// Exact by the form `motley`: every shape of a pass is either evaluated with every placement of whole layers, or
// excluded by a bound. docs/planner-offload.md. By the form `flexgen`: the best policy of the published model, whose
// shares are not whole layers. Throws an input error where the description lacks what the search needs.
OffloadOutcome plan_offload(const Cluster& cluster, const Model& model, const Workload& workload,
                            const OffloadOptions& options);

}  // namespace motley
