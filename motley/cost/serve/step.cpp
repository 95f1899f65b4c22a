#include "motley/cost/serve/step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "motley/cluster/names.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

// Starting values, not measurements: launches of about ten kernels, and the scheduling and framing of a step.
constexpr double default_layer_overhead_s = 20e-6;
constexpr double default_step_overhead_s = 100e-6;

// Of the bandwidth of other weights that quantised ones reach: the median of seven cards (bench/cards_fit).
constexpr double unpacking = 0.8;

std::optional<double> given(const CostOptions& options, const std::string& key) {
  const auto found = options.settings.find(key);
  return found == options.settings.end() ? std::nullopt : std::optional(found->second);
}

// Of the rank that takes longest.
template <class TimeOf>
auto slowest(const TensorGroup& group, TimeOf time_of) {
  auto slowest = time_of(group.ranks.front());
  for (const Rank& rank : group.ranks)
    if (const auto time = time_of(rank); time.seconds() > slowest.seconds()) slowest = time;
  return slowest;
}

double independent_tokens(double tokens, const std::vector<RoutingGamma>& gamma, double RoutingGamma::*of) {
  double independent = 1, from = 1;
  for (std::size_t i = 0; i < gamma.size(); ++i) {
    const auto end = static_cast<double>(gamma[i].tokens);
    const bool ends_here = tokens <= end || i + 1 == gamma.size();
    independent *= std::pow((ends_here ? tokens : end) / from, gamma[i].*of);
    if (ends_here) break;
    from = end;
  }
  return independent;
}

}  // namespace

double independent_draws(const StepLoad& load, const std::vector<RoutingGamma>& gamma) {
  static const std::vector<RoutingGamma> uncounted = {{.model = {}, .sequences = 0.87, .prompt = 0.75}};
  const std::vector<RoutingGamma>& parts = gamma.empty() ? uncounted : gamma;
  const double decoding = load.decoding();
  return independent_tokens(decoding, parts, &RoutingGamma::sequences) +
         independent_tokens(load.tokens - decoding, parts, &RoutingGamma::prompt);
}

double touched_share(const Experts& experts, const StepLoad& load, const std::vector<RoutingGamma>& gamma) {
  if (experts.count == 0) return 1;
  const double draws = load.draws > 0 ? load.draws : independent_draws(load, gamma);
  return 1 - std::pow(1 - static_cast<double>(experts.active) / static_cast<double>(experts.count), draws);
}

UncertainTime larger_of(const UncertainTime& a, const UncertainTime& b) {
  if (a.deviation_s == 0 && b.deviation_s == 0) return a.mean_s >= b.mean_s ? a : b;
  const double apart = std::hypot(a.deviation_s, b.deviation_s);
  const double distance = (a.mean_s - b.mean_s) / apart;
  const double a_is_larger = std::erfc(-distance / std::numbers::sqrt2) / 2;
  const double density = std::exp(-distance * distance / 2) / std::sqrt(2 * std::numbers::pi);
  const auto square = [](const UncertainTime& time) {
    return std::pow(time.mean_s, 2) + std::pow(time.deviation_s, 2);
  };
  const double mean = a.mean_s * a_is_larger + b.mean_s * (1 - a_is_larger) + apart * density;
  const double mean_square =
      square(a) * a_is_larger + square(b) * (1 - a_is_larger) + (a.mean_s + b.mean_s) * apart * density;
  return {mean, std::sqrt(std::max(0.0, mean_square - mean * mean))};
}

double touched_deviation(const Experts& experts, std::int64_t held, double share) {
  if (held >= experts.count) return 0;
  const auto all = static_cast<double>(experts.count);
  return std::sqrt(share * (1 - share) / static_cast<double>(held) * all / (all - 1));
}

double routing_bytes(const TensorGroup& group, std::size_t kind, double tokens) {
  return 4 * tokens * static_cast<double>(group.ranks.front().blocks[kind].experts.count);
}

double effective_bandwidth(const Rank& rank) {
  const Efficiency& share = rank.efficiency;
  if (!rank.unpacks) return rank.memory_bandwidth_bytes_per_s * share.bandwidth;
  return rank.memory_bandwidth_bytes_per_s *
         (share.quantised_bandwidth > 0 ? share.quantised_bandwidth : unpacking * share.bandwidth);
}
double effective_flop_per_s(const Rank& rank) { return rank.flop_per_s * rank.efficiency.compute; }
double attention_bandwidth(const Rank& rank) {
  const Efficiency& share = rank.efficiency;
  return rank.memory_bandwidth_bytes_per_s *
         (share.attention_bandwidth > 0 ? share.attention_bandwidth : share.bandwidth);
}
double attention_flop_per_s(const Rank& rank) {
  const Efficiency& share = rank.efficiency;
  return rank.flop_per_s * (share.attention_compute > 0 ? share.attention_compute : share.compute);
}

double all_reduces(const BlockWork& block) { return block.experts.own_norms ? 3 : 2; }

double kept_bytes(const BlockWork& block, const StepLoad& load) {
  return load.cached_of(block) * block.kv_bytes + 2 * load.decoding() * block.state_bytes;
}

double elementwise_s(const Rank& rank, const BlockWork& block) {
  const double share = rank.efficiency.elementwise;
  return share > 0 ? block.element_bytes / (rank.memory_bandwidth_bytes_per_s * share) : 0;
}

StepCost::StepCost(const CostOptions& options, const Cluster& cluster, const Architecture& arch)
    : cluster_(cluster),
      arch_(arch),
      layer_overhead_s_(given(options, "motley.layer_overhead_s")),
      step_overhead_s_(given(options, "motley.step_overhead_s")),
      gamma_(options.gamma) {}

double StepCost::touched(const BlockWork& block, const StepLoad& load) const {
  return touched_share(block.experts, load, gamma_) * static_cast<double>(block.held_experts);
}

double StepCost::expert_bytes(const BlockWork& block, const StepLoad& load) const {
  return block.expert_bytes > 0 ? touched_share(block.experts, load, gamma_) * block.expert_bytes : 0;
}

double StepCost::read_bytes(const BlockWork& block, const StepLoad& load) const {
  return static_cast<double>(block.bytes) - block.expert_bytes + expert_bytes(block, load);
}

double StepCost::layer_overhead_s(const TensorGroup& group) const {
  if (layer_overhead_s_) return *layer_overhead_s_;
  double most = 0;
  for (const Rank& rank : group.ranks)
    most = std::max(most, rank.overhead ? rank.overhead->layer_s : default_layer_overhead_s);
  return most;
}

double StepCost::step_overhead_s(const TensorGroup& group) const {
  if (step_overhead_s_) return *step_overhead_s_;
  double most = 0;
  for (const Rank& rank : group.ranks)
    most = std::max(most, rank.overhead ? rank.overhead->step_s : default_step_overhead_s);
  return most;
}

double StepCost::in_window(double context) const {
  const std::int64_t window = widest_window(arch_);
  return window > 0 ? std::min(context, static_cast<double>(window)) : context;
}

StepLoad StepCost::windowed(StepLoad load, double window_cached) const {
  load.window_context = in_window(load.context);
  load.window_cached = window_cached;
  load.draws = independent_draws(load, gamma_);
  return load;
}

double StepCost::block_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const {
  return block_time(group, kind, load).seconds() + between_ranks_s(group, kind, load);
}

double StepCost::between_ranks_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const {
  return all_reduces_s(group, kind, load) + norms_s(group, load) + routing_s(group, kind, load) +
         layer_overhead_s(group);
}

double StepCost::ends_s(const TensorGroup& group, StageEnds ends, const StepLoad& load) const {
  const double head = ends.last ? head_roofline(group, load).seconds() + gather_logits_s(group, load) : 0;
  return step_overhead_s(group) + receive_s(group, ends, load) + head;
}

BlockTime StepCost::rank_time(const Rank& rank, std::size_t kind, const StepLoad& load) const {
  const BlockWork& block = rank.blocks[kind];
  return {.products = {read_bytes(block, load) / effective_bandwidth(rank),
                       load.tokens * block.flops / effective_flop_per_s(rank), rank.efficiency.in_turn},
          .attention = {kept_bytes(block, load) / attention_bandwidth(rank),
                        load.tokens * block.attention_flops * load.context_of(block) / attention_flop_per_s(rank)},
          .elementwise_s = load.tokens * elementwise_s(rank, block)};
}

// By the experts that it happens to read; how many tokens take them counts on average.
UncertainTime StepCost::uncertain_time(const Rank& rank, std::size_t kind, const StepLoad& load) const {
  const BlockWork& block = rank.blocks[kind];
  const BlockTime time = rank_time(rank, kind, load);
  const double deviation =
      touched_deviation(block.experts, block.held_experts, touched_share(block.experts, load, gamma_));
  return {time.seconds(), time.products.by_memory() ? deviation * block.expert_bytes / effective_bandwidth(rank) : 0};
}

BlockTime StepCost::block_time(const TensorGroup& group, std::size_t kind, const StepLoad& load) const {
  BlockTime time = slowest(group, [&](const Rank& rank) { return rank_time(rank, kind, load); });
  const auto whole = [&](const Rank& rank) { return rank.blocks[kind].held_experts < rank.blocks[kind].experts.count; };
  if (std::ranges::none_of(group.ranks, whole)) return time;
  UncertainTime last = uncertain_time(group.ranks.front(), kind, load);
  for (std::size_t i = 1; i < group.ranks.size(); ++i)
    last = larger_of(last, uncertain_time(group.ranks[i], kind, load));
  time.imbalance_s = last.mean_s - time.seconds();
  return time;
}

double StepCost::all_reduces_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const {
  return all_reduces(group.ranks.front().blocks[kind]) * all_reduce_s(group, activation_bytes(group, load.tokens));
}

double StepCost::norms_s(const TensorGroup& group, const StepLoad& load) const {
  return arch_.qk_norm == QkNorm::whole ? all_reduce_s(group, squares_bytes * load.tokens) : 0;
}

double StepCost::routing_s(const TensorGroup& group, std::size_t kind, const StepLoad& load) const {
  const double bytes = routing_bytes(group, kind, load.tokens);
  return bytes > 0 ? all_reduce_s(group, bytes) : 0;
}

// The first stage adds up the parts of its cut embedding; the others gather the stripes that arrive at their ranks.
double StepCost::receive_s(const TensorGroup& group, StageEnds ends, const StepLoad& load) const {
  const double bytes = activation_bytes(group, load.tokens);
  return ends.first ? all_reduce_s(group, bytes) : all_gather_s(group, bytes);
}

// A prompt's head is read once, in its last chunk; a part of a logit spreads it over the chunks.
Roofline StepCost::head_roofline(const TensorGroup& group, const StepLoad& load) const {
  const double times = std::min(1.0, load.logits);
  return slowest(group, [&](const Rank& rank) {
    return Roofline{times * rank.head_bytes / effective_bandwidth(rank),
                    load.logits * rank.head_flops / effective_flop_per_s(rank), rank.efficiency.in_turn};
  });
}

double StepCost::gather_logits_s(const TensorGroup& group, const StepLoad& load) const {
  if (group.degree() < 2 || load.logits == 0) return 0;
  const double times = std::min(1.0, load.logits);
  return times * all_gather_s(group, load.logits / times * static_cast<double>(arch_.vocabulary) * logit_bytes);
}

double StepCost::activation_bytes(const TensorGroup& group, double tokens) const {
  return tokens * static_cast<double>(bytes_of(dtype_row(group.weight_type).computed_in, arch_.hidden));
}

double StepCost::attention_bytes(const TensorGroup& group, double tokens) const {
  return activation_bytes(group, tokens) / static_cast<double>(arch_.hidden) *
         static_cast<double>(arch_.heads * largest_head(arch_));
}

double StepCost::crossing_bytes(const TensorGroup& group, double tokens) const {
  const DType type = group.sends_in.value_or(dtype_row(group.weight_type).computed_in);
  return tokens * static_cast<double>(motley::crossing_bytes(type, arch_.hidden));
}

HopSpeed StepCost::crossing(const TensorGroup& from, const TensorGroup& to, double tokens) const {
  return best_hop(cluster_, from.devices, to.devices, crossing_bytes(from, tokens));
}

double StepCost::token_return_s(const TensorGroup& last, const TensorGroup& first, double sequences) const {
  const double bytes = sequences * token_id_bytes;
  if (cluster_.description.driver) return driver_way(cluster_, last.devices, first.devices).seconds(bytes);
  if (last.devices == first.devices) return 0;
  return best_link(cluster_, last.devices, first.devices, bytes).seconds(bytes);
}

// ---- measured figures ----

std::optional<double> measured_tokens_per_s(const Profile& profile, const Cluster& cluster,
                                            const std::vector<int>& devices, std::int64_t layers) {
  MOTLEY_CHECK(!devices.empty() && layers > 0);
  const DeviceType& type = cluster.type_of(devices.front());
  for (const int device : devices)
    if (cluster.type_of(device).name != type.name) return {};
  const LayerRate* rate = find_layer_rate(profile, type.name, std::ssize(devices));
  if (rate == nullptr) return {};
  if (layers > std::ssize(rate->tokens_per_s))
    throw input_error(fmt::format("the profile has rates of {} (tp {}) for up to {} layers, and the stage has {}",
                                  type.name, devices.size(), rate->tokens_per_s.size(), layers),
                      "give the stage fewer layers, or measure more");
  return rate->tokens_per_s[static_cast<std::size_t>(layers - 1)];
}

MeasuredLink measured_link(const Profile& profile, const Cluster& cluster, int from, int to) {
  if (profile.link_tokens.empty() && profile.link_rate.empty()) return {};
  const auto machine_of = [&](int device) -> const Machine& {
    return cluster.machines[static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(device)].machine)];
  };
  const Machine &a = machine_of(from), &b = machine_of(to);
  const auto find = [&](const auto& list, const std::string& here, const std::string& there) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const auto& link) {
      return plain_name(link.from) == plain_name(here) && plain_name(link.to) == plain_name(there);
    });
    return found == list.end() ? nullptr : &*found;
  };
  const auto most_specific = [&](const auto& list) {
    if (const auto* link = find(list, a.name, b.name)) return link;
    if (const auto* link = find(list, a.site, b.site)) return link;
    return find(list, cluster.type_of(from).name, cluster.type_of(to).name);
  };
  return {most_specific(profile.link_tokens), most_specific(profile.link_rate)};
}

double bytes_per_s(const LinkRate& rate, double bytes) {
  const auto above = std::lower_bound(rate.bytes.begin(), rate.bytes.end(), bytes) - rate.bytes.begin();
  const auto i = static_cast<std::size_t>(above);
  if (i == 0) return rate.bytes_per_s.front();
  if (i == rate.bytes.size()) return rate.bytes_per_s.back();
  const double part = (bytes - rate.bytes[i - 1]) / (rate.bytes[i] - rate.bytes[i - 1]);
  return rate.bytes_per_s[i - 1] + part * (rate.bytes_per_s[i] - rate.bytes_per_s[i - 1]);
}

}  // namespace motley
