// The time of steps as numbers alone: what cost/serve/step.hpp says of a plan's stages and links, with everything put
// in that is the same for every step. The simulator takes its times from it, the scheduler the sizes of its steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

// Seconds of a message: a latency, and so much for every token.
struct MessageTime {
  double latency_s = 0;
  double token_s = 0;
  double seconds(double tokens) const { return latency_s + tokens * token_s; }
  bool operator==(const MessageTime&) const = default;
};

// All-reduces of one size, each in the way that takes less.
struct AllReduces {
  double count = 0;
  MessageTime ring = {}, direct = {};
  double seconds(double tokens) const { return count * std::min(ring.seconds(tokens), direct.seconds(tokens)); }
  bool operator==(const AllReduces&) const = default;
};

// A step on one stage of a route.
struct StageTime {
  // One for each kind of layer and of rank. Those of one kind of layer follow one another; of each the slowest counts.
  struct Rank {
    std::size_t kind = 0;               // of layer
    double weights_s = 0, token_s = 0;  // products: weights are read once, or computing takes longer
    double experts_s = 0;               // those of all experts, of which a step reads some
    Experts experts = {};
    std::int64_t held_experts = 0;
    bool windowed = false;
    bool in_turn = false;                 // both add up, of the products and of the head
    double cached_s = 0, attended_s = 0;  // attention: per cached token read, per pair of tokens
    double state_s = 0;                   // a delta net: per sequence of which one token is computed
    double head_s = 0, logit_s = 0;       // the head: read once, or computing
    double element_s = 0;                 // element-wise operations, per token
    bool operator==(const Rank&) const = default;
  };
  std::vector<Rank> ranks = {};
  std::vector<RoutingGamma> gamma = {};      // of the experts of its layers
  double fixed_s = 0;                        // overheads of layers and of the step
  std::vector<AllReduces> all_reduces = {};  // of hidden states, and of routers' logits
  MessageTime gather = {}, gather_logits = {};
  double measured_tokens_per_s = 0;           // beats all of the above; 0: not measured
  std::shared_ptr<const PassCost> pass = {};  // of a stage that offloads, in place of all but `fixed_s`
  double pass_factor = 1;

  double seconds(const StepLoad& load) const;
  // Tokens whose products are computed while the weights are read, on the kind of rank that computes fewest. None where
  // the stage was measured as a whole, or offloads.
  std::optional<double> tokens_at_no_cost() const;
  bool operator==(const StageTime&) const = default;
};

// From one stage to the next. Messages of different size may take different pairs of devices.
struct HopTime {
  HopSpeed small = {}, large = {};     // the fastest pair for one token, and for a full step
  int from_device = 0, to_device = 0;  // the latter pair
  double token_bytes = 0;              // of a token's hidden state, as it is sent
  double tokens_per_s = 0;             // measured; 0: not
  std::optional<LinkRate> rate = {};   // measured

  const HopSpeed& path(double bytes) const { return small.seconds(bytes) <= large.seconds(bytes) ? small : large; }
  double occupancy_s(double tokens, double bytes) const;  // how long the sending keeps the link busy
  double latency_s(double bytes) const { return path(bytes).wait_s(bytes); }
  double seconds(double tokens) const {
    return occupancy_s(tokens, tokens * token_bytes) + latency_s(tokens * token_bytes);
  }
  bool takes_as_long_as(const HopTime& other) const;  // for any number of tokens
  std::optional<MessageTime> of_a_token() const;      // where each takes as long as any other
};

// Hops of a route that a sequence passes in every step: all of them, or those before or after the hand-over from
// prefill to decode.
struct RouteChain {
  std::size_t route = 0;
  std::size_t first_hop = 0;
  std::size_t hops = 0;
};

// Which link a hop takes: whether it is inside a machine, and the stages or else the machines at its ends.
using LinkKey = std::tuple<bool, std::size_t, std::size_t>;

// How long a step keeps its busiest stage or link, and how long it takes until the next one can follow with its tokens.
struct StepSpan {
  double busiest_s = 0;
  double round_s = 0;
};

// The stages and links that the steps of a chain pass. Where other chains share one, this chain has a part of its time:
// a step keeps it from the next one of the chain for as long as it takes there and theirs that come between.
struct PipelineTime {
  struct Visit {
    std::size_t stage = 0;  // of the plan
    double share = 1;       // of the stage's time
    StageTime time = {};
    double stages = 1;  // that take the same time; of slower and faster ones, as if this many were the slowest
  };
  struct Crossing {
    double share = 1;  // of the link's time
    HopTime time = {};
    double links = 1;  // that take the same time
  };
  std::vector<Visit> visits = {};
  std::vector<Crossing> crossings = {};
  double back_s = 0;
  std::int64_t window = 0;        // see add_sequence()
  std::uint64_t corrections = 0;  // how often the times have changed

  StepSpan span(const StepLoad& load) const;
  // With the same spans: stages that take the same time, or the same but for a factor, stand once with their number,
  // and so do links.
  PipelineTime merged() const;
};

// Adds a sequence's tokens [position, position + count) to a step. A token in the middle of a chunk sees half of the
// chunk, and in layers with a window no more cached ones than that.
void add_sequence(StepLoad& load, std::int64_t window, std::int64_t position, std::int64_t count, bool samples);
// Makes them for a plan, which must outlive it and them.
class StepTimes {
 public:
  // Throws an input error where a device type lacks what a price needs, a setting of `options` is none of the steps'
  // overheads, or the profile says that a stage cannot be.
  StepTimes(const ServePlan& plan, const CostOptions& options);

  StageTime stage(const RouteChain& chain, std::size_t hop) const;
  // `sent_in`: the type of the activations; none: what the sender computes in.
  HopTime hop(std::size_t from_stage, std::size_t to_stage, std::optional<DType> sent_in = {}) const;
  HopTime hop(const RouteChain& chain, std::size_t hop) const;  // from this hop of the chain to the next
  // Of sampled tokens from the last stage to the first, or through the driver to the next step.
  MessageTime back(const RouteChain& chain) const;
  // Of each of these chains, which share stages and links by their routes' weights.
  std::vector<PipelineTime> pipelines(const std::vector<RouteChain>& chains) const;

  std::size_t stage_of(const RouteChain& chain, std::size_t hop) const;  // index into the plan's stages
  // What is between two machines in one direction is one link; inside a machine every pair of stages has its own.
  LinkKey link_key(std::size_t from_stage, std::size_t to_stage, const HopTime& hop) const;
  const TensorGroup& group(std::size_t stage) const { return groups_[stage]; }
  double request_s() const { return cost_.driver().request_s; }  // in addition to the steps of a request

 private:
  const ServePlan& plan_;
  CostOptions options_;
  StepCost cost_;
  std::vector<TensorGroup> groups_;            // of the plan's stages
  std::vector<double> measured_tokens_per_s_;  // of the plan's stages; 0: not measured
  std::map<std::string, std::size_t, std::less<>> stage_numbers_;
};

}  // namespace motley
