// What answers requests, as those see it that ask: a Driver, or in tests what stands in for one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/batching/step_rule.hpp"
#include "motley/deployment/deployment_state.hpp"
#include "motley/serving/requests.hpp"

namespace motley {

// The stages and links that the steps of one scheduler pass: times by the cost model, and corrected by measured ones.
struct PipelineStatus {
  PipelineTime predicted, measured;
  std::vector<std::int64_t> steps;  // measured, of each visit
  std::int64_t alone = 0;           // steps whose round trip was measured
};

// What a driver tells of itself.
struct DriverStatus : DeploymentStatus {
  bool ready = false;                  // every route has produced a real token and nothing has failed
  std::optional<std::string> failure;  // what ended the deployment
  std::vector<PipelineStatus> pipelines;
  std::vector<std::int64_t> waiting, running;  // per route; routes that share stages are counted at the first of them
  std::int64_t held = 0;                       // requests that wait for a plan to take effect
  std::int64_t generated_tokens = 0, prompt_tokens = 0, preemptions = 0, free_blocks = 0, total_blocks = 0;
  std::int64_t prefix_tokens = 0, found_tokens = 0;     // of sequences that may share blocks, and those that were there
  std::map<std::string, std::int64_t> replayed_tokens;  // by stage: computed there again
};

// Safe to use from several threads.
class Generator {
 public:
  virtual ~Generator() = default;
  // Returns the request's id. Throws: input error (prompt empty, out of vocabulary, or longer than context or KV room),
  // limit error (queue full), peer error (deployment failed).
  virtual std::uint64_t generate(GenerateRequest request) = 0;
  // The request ends with an event of its own. An id that has ended is not an error.
  virtual void cancel(std::uint64_t id) = 0;
  virtual DriverStatus status() const = 0;
  // Another plan for the same model is to take effect, once its workers are prepared: steps under way end, the workers
  // are replaced or launched again, and the requests go on where they were, with the tokens that they would have had;
  // new ones are accepted meanwhile. Returns at once: status() tells how far it is. Throws an input error for a plan
  // that cannot be served here, a peer error when the deployment has failed.
  virtual void change_plan(ServePlan plan) = 0;
};

}  // namespace motley
