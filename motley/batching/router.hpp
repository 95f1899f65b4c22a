// From requests to steps on stages: which route serves a request, which routes share KV blocks and hence a scheduler,
// and what the steps of each go by. Plain logic like the scheduler: the server's dispatcher and the simulator run it
// alike.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "motley/batching/scheduler.hpp"
#include "motley/cost/serve/measured_times.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

struct RouterOptions {
  std::int64_t micro_batches = 0;  // most under way on each chain; 0: the plan's, or else by the steps' times
  std::int64_t max_queue = 256;    // requests that wait at each group; more are refused
  MakeStepRule step_rule = timed_steps;
  CostOptions cost = {};  // of the steps' times
};

struct RoutedStep {
  std::uint64_t id = 0;
  std::size_t chain = 0;
  std::vector<ScheduledSequence> sequences;
  std::vector<std::uint64_t> gone = {};  // see ScheduledStep
};

// What a new prompt begins with.
struct Prefix {
  std::int64_t prompt_tokens = 0;
  std::vector<BlockKey> keys = {};
  // Where a prompt went that begins alike, by what who asks says: all of this one is taken to be there.
  std::optional<std::size_t> route = {};
};

class Router {
 public:
  // The plan must outlive it. Every route has a chain for its requests to begin on, with the route's number; the chains
  // that decode for the routes with prefill stages follow.
  Router(const ServePlan& plan, const RouterOptions& options);

  const std::vector<RouteChain>& chains() const { return chains_; }
  std::optional<std::size_t> decode_chain(std::size_t route) const { return decode_chain_[route]; }

  // ---- routes ----

  // The route that is not masked on which a prompt ends first by what it has to do: its share of the load, in seconds
  // by the plan's weights, less the time that the tokens save which it has already. None where all are masked.
  std::optional<std::size_t> choose(const Prefix& prefix = {}) const;
  void mask(std::size_t route, bool masked) { masked_[route] = masked; }
  // How many tokens a route has room for after a prompt of this many: within the model's context and its KV blocks.
  std::int64_t room(std::size_t route, std::int64_t prompt_tokens) const;
  std::int64_t kv_tokens(std::size_t chain) const;

  // ---- sequences ----

  // `id` is new and is counted as load of the chain's route. See Scheduler::add.
  Admission add(std::uint64_t id, std::size_t chain, std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                std::int64_t cached_tokens = 0, QueueLimit queue_limit = QueueLimit::applies,
                std::vector<BlockKey> keys = {});
  // As add(), of a sequence that another router had; see Scheduler::adopt.
  Admission adopt(std::uint64_t id, std::size_t chain, std::int64_t known_tokens, std::int64_t max_new_tokens,
                  const CachedTokens& cached, std::vector<BlockKey> keys = {});
  void add_key(std::uint64_t id, const BlockKey& key);  // see Scheduler::add_key
  // What is there of the running sequences of a group, if every step under way is lost.
  std::map<std::uint64_t, CachedTokens> cached(std::size_t group) const { return groups_[group].scheduler.cached(); }
  // Takes a sequence out that has not ended.
  void cancel(std::uint64_t id);

  // The next step of any group, if one can start now.
  std::optional<RoutedStep> next();
  std::optional<RoutedStep> next(std::size_t group);
  // What a step on a chain took on each of its stages, 0 where that is not known; and altogether, where it was alone on
  // its way. Corrects the times by which the steps of all chains through these stages are sized.
  void measure(std::size_t chain, const StepLoad& load, const std::vector<double>& stage_s,
               std::optional<double> alone_s);
  // What the cost model alone says that a step takes on each stage of a chain.
  std::vector<double> believed_s(std::size_t chain, const StepLoad& load) const;
  // A step is done; `finished` ended with it. What was cancelled meanwhile may not be among them.
  void complete(std::uint64_t step, const std::set<std::uint64_t>& finished);

  // ---- state ----

  std::size_t groups() const { return groups_.size(); }
  // What the sizes of steps go by.
  const StepTimes& times() const { return *times_; }
  std::size_t group_of(std::size_t chain) const { return ways_[chain].group; }
  SchedulerCounts counts(std::size_t group) const { return groups_[group].scheduler.counts(); }
  std::int64_t blocks(std::size_t group) const { return groups_[group].blocks; }
  std::int64_t micro_batches(std::size_t chain) const { return ways_[chain].micro_batches; }  // at most under way
  const MeasuredPipeline& times(std::size_t chain) const { return ways_[chain].times; }

 private:
  // What a chain has of its own.
  struct Way {
    std::size_t group = 0;
    std::size_t lane = 0;  // of the group's scheduler
    std::int64_t micro_batches = 1;
    MeasuredPipeline times;
  };
  // Chains that share a stage share its KV blocks, hence one scheduler; usually a chain is alone.
  struct Group {
    std::int64_t blocks = 0, block_tokens = 0;
    std::int64_t buffer_tokens = 0;   // of a sequence, at most: where its keys and values pass through a buffer
    std::vector<std::size_t> chains;  // by lane
    Scheduler scheduler;
  };
  struct StepUnderWay {
    std::size_t group = 0;
    std::uint64_t scheduled_step = 0;
  };

  void forget(std::uint64_t id);
  std::vector<double> saved_requests(const Prefix& prefix) const;

  const ServePlan* plan_;
  std::unique_ptr<const StepTimes> times_;
  std::int64_t context_ = 0;
  std::vector<RouteChain> chains_;
  std::vector<std::optional<std::size_t>> decode_chain_;  // per route
  std::vector<double> weights_, load_;                    // per route; load: open requests
  std::vector<bool> masked_;
  std::vector<Way> ways_;  // by chain
  std::vector<Group> groups_;
  std::size_t next_group_ = 0;                     // whose turn it is to fill a step
  std::map<std::uint64_t, std::size_t> chain_of_;  // of the open sequences
  std::map<std::uint64_t, StepUnderWay> under_way_;
  std::uint64_t last_step_ = 0;
};

// Which route a new request goes to: the least loaded in proportion to its weight, less what it saves there; ties to
// the first. A weight of 0 takes requests only where no route has more. `load` counts requests, and `saved` says how
// many requests' time of a route of weight 1. None: all are masked.
std::optional<std::size_t> choose_route(const std::vector<double>& weights, const std::vector<double>& load,
                                        const std::vector<bool>& masked, const std::vector<double>& saved = {});

}  // namespace motley
