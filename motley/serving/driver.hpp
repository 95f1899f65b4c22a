// Runs a serving plan: starts one worker per device, feeds the routes through the scheduler, watches over the
// workers, and hands out tokens. Knows token ids; text and HTTP stand above it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/batching/step_rule.hpp"
#include "motley/deployment/deployment_state.hpp"
#include "motley/plan/serve.hpp"
#include "motley/workers/fleet.hpp"
#include "motley/workers/messages.hpp"
#include "motley/workers/worker_set.hpp"

namespace motley {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_new_tokens = 16;       // 0: only the prompt is computed
  Sampling sampling;                      // `generated` and `forbidden` are filled by the driver
  std::vector<std::int32_t> stop_tokens;  // ends of sequence; not part of the output
  std::int64_t min_new_tokens = 0;
  bool ignore_eos = false;
  // Log-probabilities of the prompt's tokens, with so many of the most likely at each place.
  std::optional<std::int32_t> prompt_logprobs = {};
};

// failed: the deployment failed; no_room: the plan has changed, and the new one does not hold the request.
enum class FinishReason { stop, length, cancelled, failed, no_room };

// The scores of the prompt, a new token, or the end.
struct GenerateEvent {
  std::uint64_t request = 0;
  std::optional<SampledToken> token = {};                     // a new token
  std::optional<FinishReason> finished = {};                  // the last event
  std::string stop_cause = {};                                // the error's text when failed or without room
  std::optional<std::vector<TokenScore>> prompt_scores = {};  // before the first token; of all but the prompt's first
};

struct DriverOptions {
  std::filesystem::path model_folder;  // or a GGUF file
  std::int64_t max_queue = 256;
  std::int64_t micro_batches = 0;  // per route; 0: the plan's
  MakeStepRule step_rule = timed_steps;
  double watchdog_s = 10;  // see WorkerSetOptions
  // Finds a plan after a loss; without it a loss ends the deployment. Called on the driver's own thread, which does
  // nothing else meanwhile.
  Replan replan = {};
  RestartRule restart = {};
  double hold_s = 30;  // that requests wait while nothing fits what is left; then they fail, and new ones are refused
  // Start-up phases with times, for people: ("weights", 0.42, 1.3 s).
  std::function<void(const std::string& phase, const std::string& detail, double elapsed_s)> report;
  // Takes what a step brought its requests, all at once; the events of one request are in order. Called on the driver's
  // own thread; must not block or throw. It may call generate() and cancel(). A request's first events may arrive
  // before generate() has returned its id.
  std::function<void(std::vector<GenerateEvent>)> on_events;
};

// The stages and links that the steps of one scheduler pass: times by the cost model, and corrected by measured ones.
struct PipelineStatus {
  PipelineTime predicted, measured;
  std::vector<std::int64_t> steps;  // measured, of each visit
  std::int64_t alone = 0;           // steps whose round trip was measured
};

struct DriverStatus {
  bool ready = false;  // every route has produced a real token and nothing has failed
  DeploymentPhase phase = DeploymentPhase::loading;
  std::optional<std::string> failure;     // what ended the deployment
  std::shared_ptr<const ServePlan> plan;  // in force; the rest is of its workers and routes
  std::uint64_t epoch = 0;                // of the plan: from 1, one more with each change
  std::vector<WorkerStatus> workers;
  std::vector<PipelineStatus> pipelines;
  std::vector<std::int64_t> waiting, running;  // per route; routes that share stages are counted at the first of them
  std::int64_t held = 0;                       // requests that wait for a plan to take effect
  std::int64_t generated_tokens = 0, prompt_tokens = 0, preemptions = 0, free_blocks = 0, total_blocks = 0;
  std::map<std::string, std::int64_t> replayed_tokens;  // by stage: computed there again
  std::map<std::string, double> slow;                   // devices that compute so many times slower than they used to
  std::set<std::string> lost;                           // devices, which are not planned with
  double uptime_s = 0;
};

class Driver {
 public:
  // Checks the plan, starts the workers in `fleet`, which outlives this, and returns when every route has produced a
  // token; where `restart` waits, also when nothing fits what is left, so that change_plan() can bring another. Throws
  // what a worker reported (its own message, as when its memory does not hold its part), a peer error when one died;
  // leaves no process behind.
  Driver(ServePlan plan, Fleet& fleet, DriverOptions options);
  ~Driver();  // stops all workers; requests that are open end as cancelled

  // Returns the request's id. Throws: input error (prompt empty, out of vocabulary, or longer than context or KV room),
  // limit error (queue full), peer error (deployment failed).
  std::uint64_t generate(GenerateRequest request);
  // The request ends with an event of its own. An id that has ended is no error.
  void cancel(std::uint64_t id);

  // Refuses new requests (limit error), lets those under way end (at most `seconds`). Not from the driver's own thread.
  void drain(double seconds);
  DriverStatus status() const;
  // Another plan for the same model is to take effect, once its workers are prepared: steps under way end, the workers
  // are replaced or launched again, and the requests go on where they were, with the tokens that they would have had;
  // new ones are accepted meanwhile. Returns at once: status() tells how far it is. Throws an input error for a plan
  // that cannot be served here, a peer error when the deployment has failed.
  void change_plan(ServePlan plan);
  // Called once, from the driver's thread, when the deployment fails; at once if that has happened.
  void on_failure(std::function<void(const Error&)> callback);
  std::shared_ptr<const ServePlan> plan() const;  // in force

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
