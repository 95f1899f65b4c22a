// What the driver knows about its requests: their tokens, which route serves them, and what each step must carry. No
// sockets, threads or clock; token ids only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/plan/serve.hpp"
#include "motley/server/driver.hpp"
#include "motley/workers/messages.hpp"

namespace motley {

class Dispatcher {
 public:
  // `micro_batches` of each route; 0: the plan's.
  Dispatcher(const ServePlan& plan, std::int64_t micro_batches, std::int64_t max_queue);

  // Returns the request's id; `route`: none to take the least loaded. Throws an input error (prompt empty, tokens
  // outside the vocabulary, no room for it) or a limit error (queue full).
  std::uint64_t add(GenerateRequest request, std::optional<std::size_t> route = {});
  // False: it has ended already.
  bool cancel(std::uint64_t request);
  // Ends every request that is open, and returns their ids.
  std::vector<std::uint64_t> cancel_all();

  // The next step of any route, if one can start now; with the tokens and sampling parameters of all its sequences.
  std::optional<Step> next();
  // The tokens that came out of a step, from the last stage. What they mean for the requests, in order; what belongs to
  // requests that were cancelled meanwhile is dropped. Throws a peer error where the answer is not one to that step.
  std::vector<GenerateEvent> complete(const StepResult& result);

  std::int64_t tokens_under_way() const { return tokens_under_way_; }
  bool idle() const { return requests_.empty(); }

  // Fills in queues, blocks and preemptions. Routes that share stages are counted at the first of them.
  void describe(DriverStatus& status) const;

 private:
  struct Request {
    GenerateRequest asked;             // the prompt has moved to `tokens`
    std::vector<std::int32_t> tokens;  // prompt and generated
    std::size_t prompt_tokens = 0;
    std::int64_t max_new_tokens = 0;  // within context and KV room
    std::size_t route = 0;
    std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size() - prompt_tokens); }
  };
  struct StepUnderWay {
    std::int64_t tokens = 0;
    std::set<std::uint64_t> samples;
  };

  void check(const GenerateRequest& request) const;
  Step fill(const RoutedStep& routed);
  StepSequence fill(const ScheduledSequence& part) const;
  bool take_token(std::uint64_t id, const SampledToken& token, std::vector<GenerateEvent>& events);
  bool is_end(const Request& request, std::int32_t token) const;

  const ServePlan& plan_;
  Router router_;
  std::map<std::uint64_t, Request> requests_;
  std::vector<Step> ready_;  // scheduled together, to be handed out one by one
  std::map<std::uint64_t, StepUnderWay> under_way_;
  std::uint64_t last_request_ = 0;
  std::int64_t tokens_under_way_ = 0;
};

}  // namespace motley
