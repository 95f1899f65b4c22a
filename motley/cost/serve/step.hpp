// What one step of a stage costs: the arithmetic of the form `motley`, used by its closed form and by the simulator.
//
// A step carries t tokens of some sequences through the layers of a stage. One block of a kind takes on the slowest
// rank
//
//   max(weights / bandwidth, t * flops / flop_per_s)                               products (or the sum: `in_turn`)
//     + t * bytes read and written / bandwidth of element-wise operations          norms, sums, activations
//     + max(k * kv_bytes / bandwidth, t * attention_flops(context) / flop_per_s)   attention, at shares of its own
//     + 2 all-reduces (3 where experts have norms of their own) of t * H activations + a constant per layer
//
// where k cached tokens are read. A delta net has in attention's place the states of the sequences that decode, read
// and written. Per stage and step come receiving the tokens (all-gather over the group after the striped crossing; on
// the first stage an all-reduce of the cut embedding), the head on the last stage, and a constant.
// docs/concepts/costs.md has symbols, units, validity and sources.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/cluster/profile.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/cost/form/group.hpp"
#include "motley/cost/form/hop.hpp"

namespace motley {

// What a step asks of a stage.
struct StepLoad {
  double tokens = 0;                             // that pass through
  double context = 0;                            // that each of them attends to, on average
  double cached = 0;                             // cached tokens that are read, over all sequences
  double logits = 0;                             // tokens that go through the head
  double window_context = 0, window_cached = 0;  // `context` and `cached` of layers with a window
  double draws = 0;                              // tokens that choose experts for themselves; 0: yet to be counted
  double context_of(const BlockWork& block) const {
    return block.state_bytes > 0 ? 0 : block.windowed ? window_context : context;
  }
  double cached_of(const BlockWork& block) const {
    return block.state_bytes > 0 ? 0 : block.windowed ? window_cached : cached;
  }
  double decoding() const { return std::min(tokens, logits); }  // sequences of which it computes one token
};

// Bytes that a block reads and writes of what it keeps of sequences.
double all_reduces(const BlockWork& block);  // of activations: how many a block has
double kept_bytes(const BlockWork& block, const StepLoad& load);

// Of a block's experts, the share that the tokens of a step take at least once. B tokens that each choose k of E
// independently take E (1 - (1 - k / E)^B); popular experts, and tokens of one text that resemble each other, make them
// fewer, as if there were B^gamma tokens: where none was counted 0.87 of unlike sequences, 0.75 of one prompt
// (docs/concepts/costs.md).
double touched_share(const Experts& experts, const StepLoad& load, const std::vector<RoutingGamma>& gamma = {});
// As many tokens as choose for themselves: that power.
double independent_draws(const StepLoad& load, const std::vector<RoutingGamma>& gamma);

inline constexpr double token_id_bytes = 8;  // int64
inline constexpr double logit_bytes = 4;     // fp32

struct Roofline {
  double memory_s = 0;
  double compute_s = 0;
  bool in_turn = false;                                               // otherwise at once
  bool by_memory() const { return in_turn || memory_s > compute_s; }  // reading less would take less
  double seconds() const {
    if (in_turn) return memory_s + compute_s;
    return memory_s > compute_s ? memory_s : compute_s;
  }
};

// A time that differs from step to step and from layer to layer.
struct UncertainTime {
  double mean_s = 0, deviation_s = 0;
};
// The larger of two that are normal and independent, by its moments (Clark, 1961).
UncertainTime larger_of(const UncertainTime& a, const UncertainTime& b);
// The standard deviation of the touched share of a rank's whole experts, where on average this share is touched: that
// of a draw of `held` experts from all. 0 where the rank has a part of each of them.
double touched_deviation(const Experts& experts, std::int64_t held, double share);

// What runs one after the other in a block.
struct BlockTime {
  Roofline products, attention;
  double elementwise_s = 0;
  double imbalance_s =
      0;  // where ranks hold whole experts: how much longer than that the last of them takes on average
  double seconds() const { return products.seconds() + attention.seconds() + elementwise_s + imbalance_s; }
};

// Cluster and architecture must outlive it.
class StepCost {
 public:
  // `motley.layer_overhead_s` and `motley.step_overhead_s` of the options beat those of the device types.
  StepCost(const CostOptions& options, const Cluster& cluster, const Architecture& arch);

  // Of this many cached tokens, what one sequence reads in layers with a window.
  double in_window(double context) const;
  // A load with windows, whose tokens see as much as they do on average, and draws.
  StepLoad windowed(StepLoad load, double window_cached) const;

  // One block of a kind, and what a stage adds by its place in the chain.
  double block_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const;
  // Of a block's time, what its ranks do not take each for itself.
  double between_ranks_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const;
  double ends_s(const TensorGroup& group, StageEnds ends, const StepLoad& load) const;

  // Their parts.
  BlockTime block_time(const TensorGroup& group, std::size_t kind, const StepLoad& load) const;  // of the slowest rank
  double touched(const BlockWork& block, const StepLoad& load) const;  // of its experts, on average
  double all_reduces_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const;  // all of a block
  // Of a block's weights, those that a step reads: of its experts, and of all.
  double expert_bytes(const BlockWork& block, const StepLoad& load) const;
  double read_bytes(const BlockWork& block, const StepLoad& load) const;
  // Norms of queries and of keys over the heads of all ranks: one all-reduce of squares. 0: it has none.
  double norms_s(const TensorGroup& group, const StepLoad& load) const;
  // All ranks take the experts that the first one's router chose: one all-reduce more. 0: it has none.
  double routing_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const;
  double receive_s(const TensorGroup& group, StageEnds ends, const StepLoad& load) const;
  Roofline head_roofline(const TensorGroup& group, const StepLoad& load) const;
  double gather_logits_s(const TensorGroup& group, const StepLoad& load) const;
  double layer_overhead_s(const TensorGroup& group) const;
  double step_overhead_s(const TensorGroup& group) const;

  // Hidden states of `tokens` as the group computes in them.
  double activation_bytes(const TensorGroup& group, double tokens) const;
  // Of queries, or of what attention makes of them.
  double attention_bytes(const TensorGroup& group, double tokens) const;
  // As it sends them to the next stage.
  double crossing_bytes(const TensorGroup& group, double tokens) const;
  // The path they take: the fastest pair of devices.
  HopSpeed crossing(const TensorGroup& from, const TensorGroup& to, double tokens) const;
  // Of the sampled tokens' ids from the last stage to the first, by the driver where the cluster describes it: then the
  // links to its machine and from there, which a chain of one stage takes, too.
  double token_return_s(const TensorGroup& last, const TensorGroup& first, double sequences) const;
  bool has_driver() const { return cluster_.description.driver.has_value(); }
  // Zero where the cluster does not describe it.
  DriverCost driver() const { return cluster_.description.driver.value_or(DriverCost{}); }

 private:
  BlockTime rank_time(const Rank& rank, std::size_t kind, const StepLoad& load) const;
  UncertainTime uncertain_time(const Rank& rank, std::size_t kind, const StepLoad& load) const;

  const Cluster& cluster_;
  const Architecture& arch_;
  std::optional<double> layer_overhead_s_, step_overhead_s_;
  std::vector<RoutingGamma> gamma_;
};

// What a rank reaches, of products and of attention.
inline constexpr double squares_bytes = 8;  // of a token: two sums in fp32
// Of the logits of a kind's routers. 0: it has none.
double routing_bytes(const TensorGroup& group, std::size_t kind, double tokens);
double effective_bandwidth(const Rank& rank);   // B/s
double effective_flop_per_s(const Rank& rank);  // FLOP/s
double attention_bandwidth(const Rank& rank);
double attention_flop_per_s(const Rank& rank);
// Of one token in one block; 0 where the type's share of products contains it.
double elementwise_s(const Rank& rank, const BlockWork& block);

// Tokens per second that a stage of these devices passes on while it holds this many layers, where the profile says so:
// all devices of one type that was measured at this degree. Throws an input error where it says that the type cannot
// hold them.
std::optional<double> measured_tokens_per_s(const Profile& profile, const Cluster& cluster,
                                            const std::vector<int>& devices, std::int64_t layers);

// A measured figure of a directed link in place of its bandwidth: machines named in the profile before sites, sites
// before device types.
struct MeasuredLink {
  const LinkTokens* tokens = nullptr;  // beats `rate`
  const LinkRate* rate = nullptr;
};
MeasuredLink measured_link(const Profile& profile, const Cluster& cluster, int from, int to);
// Rate for a message of this size: linear between the measured sizes, constant outside.
double bytes_per_s(const LinkRate& rate, double bytes);

}  // namespace motley
