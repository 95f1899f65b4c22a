// What the driver knows about its requests: their tokens, which route serves them, and what each step must carry. It
// outlives the plan that they run under. No sockets, threads or clock; token ids only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/serving/generator.hpp"
#include "motley/serving/prefix_keys.hpp"
#include "motley/serving/requests.hpp"
#include "motley/serving/retained_cache.hpp"
#include "motley/workers/speed_monitor.hpp"
#include "motley/workers/worker_messages.hpp"
#include "motley/workers/worker_set.hpp"

namespace motley {

class Dispatcher {
 public:
  // `micro_batches` of each route; 0: the plan's. `share_prefixes`: requests find what others have computed.
  Dispatcher(std::shared_ptr<const ServePlan> plan, std::int64_t micro_batches, std::int64_t max_queue,
             MakeStepRule step_rule = timed_steps, bool share_prefixes = true);

  // Returns the request's id; `route`: none to take the least loaded that has room. Throws an input error (prompt
  // empty, tokens outside the vocabulary, no room for it) or a limit error (queue full).
  std::uint64_t add(GenerateRequest request, std::optional<std::size_t> route = {});
  // False: it has ended already.
  bool cancel(std::uint64_t request);
  // Ends every request that is open, and returns their ids.
  std::vector<std::uint64_t> cancel_all();

  // The next step of any route, if one can start now; with the tokens and sampling parameters of all its sequences.
  std::optional<Step> next();
  // The tokens that came out of a step, from the last stage. What they mean for the requests, in order; what belongs to
  // requests that were cancelled meanwhile is dropped. Throws a peer error where the answer is not one to that step.
  // What the step took corrects the times by which later ones are sized, except while warming up.
  std::vector<GenerateEvent> complete(const StepResult& result, const StepSeconds& measured = {});

  // See slow_devices(): of the plan in force, with what its workers have not finished.
  std::map<std::string, double> slow(const std::vector<StepAtWork>& at_work) const;

  std::int64_t tokens_under_way() const { return tokens_under_way_; }
  bool idle() const { return requests_.empty(); }

  // ---- plans ----

  // Forgets the steps under way. What workers that are not among `lost` are to hand over, where that takes less time
  // than to compute it again. Every request keeps its prompt and the tokens that came out of it, which the new plan
  // computes again, and is held until adopt() or resume(); new requests are accepted and held, too.
  CacheHandover change_plan(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch,
                            const std::set<std::string>& lost = {});
  // The plan's workers are there. Requests whose keys and values some of them have kept go on at once, in the same
  // blocks; what other stages lack of them is computed again, up to the last stage that lacks any.
  void adopt(const CacheEpochs& kept);
  // Asks every route for one token; warm(): all have come. Held requests wait for that.
  void warm_up();
  bool warm() const { return warm_ups_.empty(); }
  // Places the requests that are held, in the order of their arrival. One that has more room left than its route has is
  // cut to that, as a new one would be; the events are the ends of those for which no route has room.
  std::vector<GenerateEvent> resume();

  // Fills in queues, blocks, preemptions and replayed tokens. Routes that share stages are counted at the first of
  // them.
  void describe(DriverStatus& status) const;

 private:
  struct Request {
    GenerateRequest asked;                  // the prompt has moved to `tokens`
    std::vector<std::int32_t> tokens = {};  // prompt and generated
    std::size_t prompt_tokens = 0;
    std::int64_t max_new_tokens = 0;      // within context and KV room
    bool held = false;                    // the router does not know it yet
    std::int64_t computed = 0;            // tokens that have been through all stages once
    std::vector<TokenScore> scores = {};  // of the prompt's tokens from the second on, until they are handed out
    std::optional<PrefixKeys> keys = {};  // none: it shares nothing
    bool begun = false;
    std::int64_t untold = 0;  // tokens that were there when it began, until that is told
    std::int64_t generated() const { return static_cast<std::int64_t>(tokens.size() - prompt_tokens); }
    std::int64_t to_compute() const;
  };
  struct StepUnderWay {
    std::size_t chain = 0;
    StepLoad load;
    std::int64_t tokens = 0;
    bool all_stages = true;
    std::vector<std::pair<std::uint64_t, std::int64_t>> ends;  // by sequence: tokens that are computed with it
    std::set<std::uint64_t> samples;
    struct Scored {
      std::int64_t position = 0;  // in the request, of the first target
      std::size_t targets = 0;
      std::int32_t top = 0;
    };
    std::map<std::uint64_t, Scored> scored;  // by sequence
  };

  void check(const GenerateRequest& request) const;
  std::size_t route_for(const Prefix& prefix);
  Prefix prefix_of(Request& request) const;
  void remember(const Request& request, std::size_t route);
  bool place(std::uint64_t id, Request& request);
  void count_replayed(std::size_t route, const ScheduledSequence& part);
  Step fill(RoutedStep routed);
  StepSequence fill(const ScheduledSequence& part) const;
  std::optional<Scoring> scoring(const ScheduledSequence& part) const;
  CacheHandover handover(const ServePlan& before, const std::set<std::string>& lost) const;
  std::map<std::string, double> believed_by_device(const StepUnderWay& step) const;
  void take_scores(const StepUnderWay& step, const StepResult& result);
  bool take_token(std::uint64_t id, const SampledToken& token, std::vector<GenerateEvent>& events);
  bool is_end(const Request& request, std::int32_t token) const;

  std::shared_ptr<const ServePlan> plan_;
  const RouterOptions options_;
  const bool share_prefixes_;
  Router router_;
  RetainedCache kept_;
  std::uint64_t epoch_ = 1;
  bool adopts_ = false;  // workers are awaited, and kept_ is of an earlier epoch
  bool holding_ = false;
  SchedulerCounts earlier_;                       // under earlier plans: what has happened so far
  std::map<std::string, std::int64_t> replayed_;  // tokens, by stage
  std::map<std::string, SpeedMonitor> speeds_;    // by device
  std::map<std::uint64_t, Request> requests_;
  std::map<std::string, std::size_t> routes_by_name_;  // of the latest requests with a name
  std::deque<std::string> names_;                      // in the order in which they came
  std::set<std::uint64_t> warm_ups_;
  std::map<std::uint64_t, StepUnderWay> under_way_;
  std::uint64_t last_request_ = 0;
  std::int64_t tokens_under_way_ = 0;
};

}  // namespace motley
