#include "motley/cost/serve/step_time.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "motley/cost/serve/stage_group.hpp"

namespace motley {
namespace {

// Of equal times the first pair.
std::pair<int, int> fastest_pair(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to,
                                 double bytes) {
  std::pair<int, int> fastest{from.front(), to.front()};
  double least = std::numeric_limits<double>::infinity();
  for (const int a : from)
    for (const int b : to)
      if (const double seconds = hop_speed(cluster, a, b).seconds(bytes); seconds < least) {
        least = seconds;
        fastest = {a, b};
      }
  return fastest;
}

void check_overheads(const CostOptions& options) {
  for (const auto& [key, value] : options.settings) {
    if (key != "motley.layer_overhead_s" && key != "motley.step_overhead_s")
      throw input_error("the simulator has no setting \"" + key + "\"",
                        "use motley.layer_overhead_s or motley.step_overhead_s");
    if (!(value >= 0) || !std::isfinite(value))
      throw input_error(key + " must be a time in seconds", "give a number of at least 0");
  }
}

// all_reduce_s() and all_gather_s() of cost/form/group.hpp as functions of the tokens.
MessageTime message(const PathSpeed& link, double rounds, double token_bytes) {
  return {rounds * link.latency_s, token_bytes / link.bandwidth_bytes_per_s};
}

StageTime::Rank rank_time(const Rank& rank, std::size_t kind, double layers, bool head) {
  const BlockWork& block = rank.blocks[kind];
  return {.kind = kind,
          .weights_s = layers * (static_cast<double>(block.bytes) - block.expert_bytes) / effective_bandwidth(rank),
          .token_s = layers * block.flops / effective_flop_per_s(rank),
          .experts_s = layers * block.expert_bytes / effective_bandwidth(rank),
          .experts = block.experts,
          .held_experts = block.held_experts,
          .windowed = block.windowed,
          .in_turn = rank.efficiency.in_turn,
          .cached_s = layers * block.kv_bytes / attention_bandwidth(rank),
          .attended_s = layers * block.attention_flops / attention_flop_per_s(rank),
          .state_s = layers * 2 * block.state_bytes / attention_bandwidth(rank),
          .head_s = head ? rank.head_bytes / effective_bandwidth(rank) : 0,
          .logit_s = head ? rank.head_flops / effective_flop_per_s(rank) : 0,
          .element_s = layers * elementwise_s(rank, block)};
}

}  // namespace

// ---- times ----

double StageTime::seconds(const StepLoad& load) const {
  if (pass) return fixed_s + pass_factor * pass->seconds(load);
  if (measured_tokens_per_s > 0) return load.tokens / measured_tokens_per_s;
  const double heads = std::min(1.0, load.logits);
  double blocks_s = 0, head_s = 0;
  std::optional<UncertainTime> kind_s;  // of the rank that takes longest
  std::size_t kind = 0;
  for (const Rank& rank : ranks) {
    if (rank.kind != kind) {
      blocks_s += kind_s ? kind_s->mean_s : 0;
      kind_s.reset();
      kind = rank.kind;
    }
    const double cached = rank.windowed ? load.window_cached : load.cached;
    const double attended = load.tokens * (rank.windowed ? load.window_context : load.context);
    const double touched = rank.experts_s > 0 ? touched_share(rank.experts, load, gamma) : 0;
    const Roofline products{rank.weights_s + touched * rank.experts_s, load.tokens * rank.token_s, rank.in_turn};
    const Roofline head{heads * rank.head_s, load.logits * rank.logit_s, rank.in_turn};
    const double deviation = products.by_memory() ? touched_deviation(rank.experts, rank.held_experts, touched) : 0;
    const UncertainTime rank_s{
        products.seconds() + load.tokens * rank.element_s +
            std::max(cached * rank.cached_s + load.decoding() * rank.state_s, attended * rank.attended_s),
        deviation * rank.experts_s};
    kind_s = kind_s ? larger_of(*kind_s, rank_s) : rank_s;
    head_s = std::max(head_s, head.seconds());
  }
  blocks_s += kind_s ? kind_s->mean_s : 0;
  double reduce_s = 0;
  for (const AllReduces& each : all_reduces) reduce_s += each.seconds(load.tokens);
  return fixed_s + blocks_s + reduce_s + gather.seconds(load.tokens) + head_s + heads * gather_logits.latency_s +
         load.logits * gather_logits.token_s;
}

std::optional<double> StageTime::tokens_at_no_cost() const {
  if (measured_tokens_per_s > 0 || ranks.empty()) return std::nullopt;
  double fewest = std::numeric_limits<double>::infinity();
  for (const Rank& rank : ranks)
    fewest = std::min(fewest, rank.in_turn ? 0 : (rank.weights_s + rank.experts_s) / rank.token_s);
  return fewest;
}

double HopTime::occupancy_s(double tokens, double bytes) const {
  if (tokens_per_s > 0) return tokens / tokens_per_s;
  if (rate) return bytes / bytes_per_s(*rate, bytes);
  return bytes / path(bytes).bandwidth_bytes_per_s;
}

std::optional<MessageTime> HopTime::of_a_token() const {
  if (!(small == large) || small.fill_s_per_byte > 0 || (rate && tokens_per_s == 0)) return std::nullopt;
  return MessageTime{small.latency_s, tokens_per_s > 0 ? 1 / tokens_per_s : token_bytes / small.bandwidth_bytes_per_s};
}

bool HopTime::takes_as_long_as(const HopTime& other) const {
  const bool same_rate = rate && other.rate
                             ? rate->bytes == other.rate->bytes && rate->bytes_per_s == other.rate->bytes_per_s
                             : !rate && !other.rate;
  return small == other.small && large == other.large && token_bytes == other.token_bytes &&
         tokens_per_s == other.tokens_per_s && same_rate;
}

StepSpan PipelineTime::span(const StepLoad& load) const {
  StepSpan span{.round_s = back_s};
  for (const Visit& visit : visits) {
    const double seconds = visit.time.seconds(load) / visit.share;
    span.busiest_s = std::max(span.busiest_s, seconds);
    span.round_s += visit.stages * seconds;
  }
  for (const Crossing& crossing : crossings) {
    const double bytes = load.tokens * crossing.time.token_bytes;
    const double seconds = crossing.time.occupancy_s(load.tokens, bytes) / crossing.share;
    span.busiest_s = std::max(span.busiest_s, seconds);
    span.round_s += crossing.links * (seconds + crossing.time.latency_s(bytes));
  }
  return span;
}

// Where every token takes the same time on a stage or a link, one with the sum of their times stands for all of them.
PipelineTime PipelineTime::merged() const {
  PipelineTime merged{.back_s = back_s, .window = window, .corrections = corrections};
  double stage_s = 0, slowest_stage_s = 0, link_s = 0, slowest_link_s = 0;  // per token
  for (const Visit& visit : visits) {
    if (visit.time.measured_tokens_per_s > 0 && !visit.time.pass) {
      const double token_s = 1 / (visit.time.measured_tokens_per_s * visit.share);
      stage_s += visit.stages * token_s;
      slowest_stage_s = std::max(slowest_stage_s, token_s);
      continue;
    }
    const auto like = std::ranges::find_if(
        merged.visits, [&](const Visit& other) { return other.share == visit.share && other.time == visit.time; });
    if (like != merged.visits.end())
      like->stages += visit.stages;
    else
      merged.visits.push_back(visit);
  }
  for (const Crossing& crossing : crossings) {
    if (const auto time = crossing.time.of_a_token()) {
      merged.back_s += crossing.links * time->latency_s;
      link_s += crossing.links * time->token_s / crossing.share;
      slowest_link_s = std::max(slowest_link_s, time->token_s / crossing.share);
      continue;
    }
    const auto like = std::ranges::find_if(merged.crossings, [&](const Crossing& other) {
      return other.share == crossing.share && other.time.takes_as_long_as(crossing.time);
    });
    if (like != merged.crossings.end())
      like->links += crossing.links;
    else
      merged.crossings.push_back(crossing);
  }
  if (slowest_stage_s > 0)
    merged.visits.push_back(
        {.time = {.measured_tokens_per_s = 1 / slowest_stage_s}, .stages = stage_s / slowest_stage_s});
  if (slowest_link_s > 0)
    merged.crossings.push_back({.time = {.tokens_per_s = 1 / slowest_link_s}, .links = link_s / slowest_link_s});
  return merged;
}

void add_sequence(StepLoad& load, std::int64_t window, std::int64_t position, std::int64_t count, bool samples) {
  const auto tokens = static_cast<double>(count);
  const double context = static_cast<double>(position) + tokens / 2;
  const auto mean = [&](double before, double own) {
    return (load.tokens * before + tokens * own) / (load.tokens + tokens);
  };
  if (window > 0) {
    const double seen = std::min(context, static_cast<double>(window));
    load.window_context = mean(load.window_context, seen);
    load.window_cached += seen;
  }
  load.context = mean(load.context, context);
  load.tokens += tokens;
  load.cached += context;
  load.logits += samples ? 1 : 0;
}

// ---- of a plan ----

StepTimes::StepTimes(const ServePlan& plan, const CostOptions& options)
    : plan_(plan),
      options_(with_gamma(options, plan.profile, plan.model.name)),
      cost_(options_, plan.cluster, plan.model.arch) {
  check_overheads(options);
  for (const Stage& stage : plan.stages) {
    stage_numbers_[stage.id] = groups_.size();
    groups_.push_back(stage_group(plan, stage));
    measured_tokens_per_s_.push_back(
        stage.offload ? 0
                      : measured_tokens_per_s(plan.profile, plan.cluster, groups_.back().devices, stage.layers.size())
                            .value_or(0));
  }
}

std::size_t StepTimes::stage_of(const RouteChain& chain, std::size_t hop) const {
  return stage_numbers_.at(plan_.routes[chain.route].path[chain.first_hop + hop].stage);
}

StageTime StepTimes::stage(const RouteChain& chain, std::size_t hop) const {
  const std::size_t number = stage_of(chain, hop);
  const TensorGroup& group = groups_[number];
  const LayerCounts layers =
      layer_counts(plan_.model.arch, plan_.routes[chain.route].path[chain.first_hop + hop].layers);
  const bool first = hop == 0, last = hop + 1 == chain.hops;
  if (const Stage& stage = plan_.stages[number]; stage.offload)
    return {.pass = std::make_shared<const PassCost>(cost_, group, StageEnds{first, last}, streamed_stage(plan_, stage),
                                                     plan_.step.max_tokens)};
  StageTime time{.gamma = options_.gamma,
                 .fixed_s = sum_of_layers(layers) * cost_.layer_overhead_s(group) + cost_.step_overhead_s(group),
                 .measured_tokens_per_s = measured_tokens_per_s_[number]};
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    if (layers[kind] == 0) continue;
    for (const Rank& rank : group.ranks) {
      const StageTime::Rank like = rank_time(rank, kind, layers[kind], last);
      // Of ranks with whole experts each one's chance counts.
      if (like.held_experts < like.experts.count || std::ranges::find(time.ranks, like) == time.ranks.end())
        time.ranks.push_back(like);
    }
  }
  const double n = group.degree();
  if (n < 2) return time;
  const double hidden_bytes = cost_.activation_bytes(group, 1);
  const auto add_all_reduces = [&](double count, double bytes) {
    time.all_reduces.push_back(
        {count, message(group.link, 2 * (n - 1), 2 * (n - 1) / n * bytes), message(group.link, 1, (n - 1) * bytes)});
  };
  double sums = first ? 1 : 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind)
    sums += layers[kind] * all_reduces(group.ranks.front().blocks[kind]);
  add_all_reduces(sums, hidden_bytes);
  if (plan_.model.arch.qk_norm == QkNorm::whole) add_all_reduces(sum_of_layers(layers), squares_bytes);
  for (std::size_t kind = 0; kind < layers.size(); ++kind)
    if (const double bytes = routing_bytes(group, kind, 1); bytes > 0 && layers[kind] > 0)
      add_all_reduces(layers[kind], bytes);
  if (!first) time.gather = message(group.link, 1, (n - 1) / n * hidden_bytes);
  const double logits_bytes = static_cast<double>(plan_.model.arch.vocabulary) * logit_bytes;
  if (last) time.gather_logits = message(group.link, 1, (n - 1) / n * logits_bytes);
  return time;
}

HopTime StepTimes::hop(const RouteChain& chain, std::size_t number) const {
  const Hop& from = plan_.routes[chain.route].path[chain.first_hop + number];
  return hop(stage_of(chain, number), stage_of(chain, number + 1), from.activation_type);
}

HopTime StepTimes::hop(std::size_t from_stage, std::size_t to_stage, std::optional<DType> sent_in) const {
  TensorGroup from = groups_[from_stage];
  from.sends_in = sent_in;
  const TensorGroup& to = groups_[to_stage];
  const double token_bytes = cost_.crossing_bytes(from, 1);
  const auto [a, b] = fastest_pair(plan_.cluster, from.devices, to.devices, token_bytes);
  const auto [c, d] =
      fastest_pair(plan_.cluster, from.devices, to.devices, token_bytes * static_cast<double>(plan_.step.max_tokens));
  const MeasuredLink measured = measured_link(plan_.profile, plan_.cluster, c, d);
  // What was measured is from device to device, with whatever copies there are.
  const bool with_copies = measured.tokens == nullptr && measured.rate == nullptr;
  const auto way = [&](int here, int there) {
    const PathSpeed link = plan_.cluster.link(here, there);
    return with_copies ? hop_over(link, plan_.cluster, here, there)
                       : HopSpeed{.latency_s = link.latency_s, .bandwidth_bytes_per_s = link.bandwidth_bytes_per_s};
  };
  return {.small = way(a, b),
          .large = way(c, d),
          .from_device = c,
          .to_device = d,
          .token_bytes = token_bytes,
          .tokens_per_s = measured.tokens != nullptr ? measured.tokens->tokens_per_s : 0,
          .rate = measured.rate != nullptr ? std::optional(*measured.rate) : std::nullopt};
}

MessageTime StepTimes::back(const RouteChain& chain) const {
  if (chain.hops < 2 && !cost_.has_driver()) return {};
  const std::vector<int>&last = groups_[stage_of(chain, chain.hops - 1)].devices,
        &first = groups_[stage_of(chain, 0)].devices;
  const PathSpeed path = cost_.has_driver() ? driver_way(plan_.cluster, last, first)
                                            : best_link(plan_.cluster, last, first, token_id_bytes);
  return {cost_.driver().step_s + path.latency_s, token_id_bytes / path.bandwidth_bytes_per_s};
}

LinkKey StepTimes::link_key(std::size_t from_stage, std::size_t to_stage, const HopTime& hop) const {
  const auto machine = [&](int device) {
    return static_cast<std::size_t>(plan_.cluster.devices[static_cast<std::size_t>(device)].machine);
  };
  const std::size_t here = machine(hop.from_device), there = machine(hop.to_device);
  return here == there ? LinkKey{true, from_stage, to_stage} : LinkKey{false, here, there};
}

// A chain of weight 0 runs where no other does.
std::vector<PipelineTime> StepTimes::pipelines(const std::vector<RouteChain>& chains) const {
  std::vector<PipelineTime> pipelines;
  std::map<std::size_t, double> stages;  // weights of all chains
  std::map<LinkKey, double> links;
  const auto ends = [&](const PipelineTime& pipeline, std::size_t crossing) {
    return link_key(pipeline.visits[crossing].stage, pipeline.visits[crossing + 1].stage,
                    pipeline.crossings[crossing].time);
  };
  for (const RouteChain& chain : chains) {
    PipelineTime& pipeline = pipelines.emplace_back();
    pipeline.back_s = back(chain).seconds(1);
    pipeline.window = widest_window(plan_.model.arch);
    for (std::size_t i = 0; i < chain.hops; ++i)
      pipeline.visits.push_back({.stage = stage_of(chain, i), .time = stage(chain, i)});
    for (std::size_t i = 0; i + 1 < chain.hops; ++i) pipeline.crossings.push_back({.time = hop(chain, i)});
    const double weight = plan_.routes[chain.route].weight;
    for (const PipelineTime::Visit& visit : pipeline.visits) stages[visit.stage] += weight;
    for (std::size_t i = 0; i < pipeline.crossings.size(); ++i) links[ends(pipeline, i)] += weight;
  }
  for (std::size_t chain = 0; chain < chains.size(); ++chain) {
    const double weight = plan_.routes[chains[chain].route].weight;
    if (weight == 0) continue;
    PipelineTime& pipeline = pipelines[chain];
    for (PipelineTime::Visit& visit : pipeline.visits) visit.share = weight / stages[visit.stage];
    for (std::size_t i = 0; i < pipeline.crossings.size(); ++i)
      pipeline.crossings[i].share = weight / links[ends(pipeline, i)];
  }
  return pipelines;
}

}  // namespace motley
