// What a driver tells of itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/batching/step_rule.hpp"
#include "motley/deployment/deployment_state.hpp"

namespace motley {

// The stages and links that the steps of one scheduler pass: times by the cost model, and corrected by measured ones.
struct PipelineStatus {
  PipelineTime predicted, measured;
  std::vector<std::int64_t> steps;  // measured, of each visit
  std::int64_t alone = 0;           // steps whose round trip was measured
};

struct DriverStatus : DeploymentStatus {
  bool ready = false;                  // every route has produced a real token and nothing has failed
  std::optional<std::string> failure;  // what ended the deployment
  std::vector<PipelineStatus> pipelines;
  std::vector<std::int64_t> waiting, running;  // per route; routes that share stages are counted at the first of them
  std::int64_t held = 0;                       // requests that wait for a plan to take effect
  std::int64_t generated_tokens = 0, prompt_tokens = 0, preemptions = 0, free_blocks = 0, total_blocks = 0;
  std::map<std::string, std::int64_t> replayed_tokens;  // by stage: computed there again
};

}  // namespace motley
