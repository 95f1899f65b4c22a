#include "motley/batching/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

std::vector<Hop> hops_of(const ServePlan& plan, const RouteChain& chain) {
  const auto first = plan.routes[chain.route].path.begin() + static_cast<std::ptrdiff_t>(chain.first_hop);
  return {first, first + static_cast<std::ptrdiff_t>(chain.hops)};
}

bool share_a_stage(const std::vector<Hop>& a, const std::vector<Hop>& b) {
  return std::ranges::any_of(a,
                             [&](const Hop& hop) { return std::ranges::find(b, hop.stage, &Hop::stage) != b.end(); });
}

// The group of each chain, numbered without gaps: chains that share a stage, directly or through others, are in one.
std::vector<std::size_t> group_chains(const std::vector<std::vector<Hop>>& chains) {
  std::vector<std::size_t> group(chains.size());
  for (std::size_t chain = 0; chain < chains.size(); ++chain) {
    group[chain] = chain;
    for (std::size_t earlier = 0; earlier < chain; ++earlier)
      if (share_a_stage(chains[earlier], chains[chain]))
        std::ranges::replace(group, std::size_t{group[chain]}, std::size_t{group[earlier]});
  }
  std::map<std::size_t, std::size_t> numbers;
  for (std::size_t& g : group) g = numbers.emplace(g, numbers.size()).first->second;
  return group;
}

// As a person fixed them; or else what keeps the busiest stage at work while the smallest steps go round, and one more
// for steps of unlike sizes.
std::int64_t micro_batches_of(const ServePlan& plan, const RouteChain& chain, const PipelineTime& pipeline,
                              const RouterOptions& options) {
  if (options.micro_batches > 0) return options.micro_batches;
  if (plan.routes[chain.route].micro_batches > 0) return plan.routes[chain.route].micro_batches;
  if (chain.hops == 1) return 1;
  constexpr std::int64_t most_per_stage = 16;  // where links take far longer than stages
  const StepSpan span = pipeline.span({.tokens = 1, .logits = 1});
  const auto stages = static_cast<std::int64_t>(chain.hops);
  return std::clamp(static_cast<std::int64_t>(std::ceil(span.round_s / span.busiest_s)), stages + 1,
                    most_per_stage * stages);
}

}  // namespace

Router::Router(const ServePlan& plan, const RouterOptions& options)
    : plan_(&plan),
      times_(std::make_unique<StepTimes>(plan, options.cost)),
      context_(plan.model.arch.context),
      decode_chain_(plan.routes.size()),
      load_(plan.routes.size(), 0),
      masked_(plan.routes.size(), false) {
  std::vector<RouteChain> decoding;
  for (std::size_t route = 0; route < plan.routes.size(); ++route) {
    const Route& described = plan.routes[route];
    weights_.push_back(described.weight);
    const std::size_t hops = described.path.size();
    const std::size_t first = hand_over_hop(plan, described).value_or(hops);
    chains_.push_back({route, 0, first});
    if (first == hops) continue;
    decode_chain_[route] = plan.routes.size() + decoding.size();
    decoding.push_back({route, first, hops - first});
  }
  chains_.insert(chains_.end(), decoding.begin(), decoding.end());

  std::vector<std::vector<Hop>> hops;
  for (const RouteChain& chain : chains_) hops.push_back(hops_of(plan, chain));
  const std::vector<std::size_t> group_of_chain = group_chains(hops);
  std::vector<PipelineTime> pipelines = times_->pipelines(chains_);
  const std::size_t count = 1 + std::ranges::max(group_of_chain);
  std::vector<SchedulerLimits> limits(count, {.blocks = std::numeric_limits<std::int32_t>::max(),
                                              .block_tokens = plan.step.block_tokens,
                                              .max_tokens = plan.step.max_tokens,
                                              .max_sequences = plan.step.max_sequences,
                                              .max_queue = options.max_queue});
  std::vector<std::int64_t> batches(count, 1), buffer_tokens(count, std::numeric_limits<std::int64_t>::max());
  for (std::size_t chain = 0; chain < chains_.size(); ++chain) {
    const std::size_t group = group_of_chain[chain];
    for (const Hop& hop : hops[chain]) {
      const Stage& stage = plan.stage(hop.stage);
      limits[group].blocks = std::min(limits[group].blocks, stage.kv_tokens / plan.step.block_tokens);
      if (stage.kv_sequences > 0)
        limits[group].slots =
            limits[group].slots > 0 ? std::min(limits[group].slots, stage.kv_sequences) : stage.kv_sequences;
      batches[group] = std::max(batches[group], stage.batches());
      if (stage.offload && stage.offload->kv.disk > 0)
        buffer_tokens[group] = std::min(buffer_tokens[group], kv_buffer_tokens(stage.kv_tokens, stage.batches()));
    }
  }
  std::vector<std::vector<Lane>> lanes(count);
  for (std::size_t group = 0; group < count; ++group) {
    limits[group].max_tokens *= batches[group];
    limits[group].max_sequences *= batches[group];
  }
  for (std::size_t chain = 0; chain < chains_.size(); ++chain) {
    const std::size_t group = group_of_chain[chain];
    const std::int64_t streaming =
        std::ranges::count_if(hops[chain], [&](const Hop& hop) { return plan.stage(hop.stage).offload.has_value(); });
    const std::int64_t planned = plan.routes[chains_[chain].route].micro_batches;
    SchedulerLimits own = limits[group];
    // A pass of a stage that offloads takes about as long for many tokens as for one: no more steps are under way than
    // the plan says, or else than there are such stages.
    if (streaming > 0)
      own.micro_batches = planned > 0 ? std::max<std::int64_t>(1, planned / batches[group]) : streaming;
    else
      own.micro_batches = micro_batches_of(plan, chains_[chain], pipelines[chain], options);
    MeasuredPipeline times(std::move(pipelines[chain]));
    lanes[group].push_back({options.step_rule(times.times(), own), own.micro_batches});
    ways_.push_back({group, lanes[group].size() - 1, own.micro_batches, std::move(times)});
  }
  for (std::size_t group = 0; group < count; ++group)
    groups_.push_back({.blocks = limits[group].blocks,
                       .block_tokens = plan.step.block_tokens,
                       .buffer_tokens = buffer_tokens[group],
                       .chains = {},
                       .scheduler = Scheduler(limits[group], std::move(lanes[group]))});
  for (std::size_t chain = 0; chain < chains_.size(); ++chain) groups_[ways_[chain].group].chains.push_back(chain);
}

std::optional<std::size_t> Router::choose(const Prefix& prefix) const {
  return choose_route(weights_, load_, masked_, saved_requests(prefix));
}

// In seconds first: of a prompt's tokens in a full step, and of the mean request, in steps that are full as well. By
// the plan's weights a request takes as long on each route as its weight is low.
std::vector<double> Router::saved_requests(const Prefix& prefix) const {
  std::vector<double> tokens(weights_.size());
  for (std::size_t route = 0; route < weights_.size(); ++route) {
    const Way& way = ways_[route];
    tokens[route] = static_cast<double>(
        prefix.route == route ? prefix.prompt_tokens
                              : groups_[way.group].scheduler.found(prefix.keys, prefix.prompt_tokens, way.lane));
  }
  if (std::ranges::count(tokens, 0.0) == std::ssize(tokens)) return {};

  const double prompt = plan_->workload.mean_prompt_tokens(), output = plan_->workload.mean_output_tokens();
  const auto busiest_s = [&](std::size_t chain, std::int64_t position, std::int64_t count, std::int64_t sequences) {
    const PipelineTime& times = *ways_[chain].times.times();
    StepLoad load;
    for (std::int64_t i = 0; i < sequences; ++i) add_sequence(load, times.window, position, count, sequences > 1);
    return times.span(load).busiest_s / static_cast<double>(count * sequences);
  };
  double requests_s = 0;
  for (std::size_t route = 0; route < weights_.size(); ++route) {
    const double token_s = busiest_s(route, 0, plan_->step.max_tokens, 1);
    const double decode_s = busiest_s(decode_chain_[route].value_or(route), static_cast<std::int64_t>(prompt), 1,
                                      std::max<std::int64_t>(2, plan_->step.max_sequences));
    tokens[route] *= token_s;
    requests_s += weights_[route] * (prompt * token_s + output * decode_s);
  }
  for (double& seconds : tokens) seconds *= static_cast<double>(weights_.size()) / requests_s;
  return tokens;
}

std::int64_t Router::kv_tokens(std::size_t chain) const {
  const Group& group = groups_[group_of(chain)];
  return std::min(group.blocks * group.block_tokens, group.buffer_tokens);
}

std::int64_t Router::room(std::size_t route, std::int64_t prompt_tokens) const {
  const std::int64_t tokens = std::min(context_, kv_tokens(decode_chain_[route].value_or(route)));
  // Where others decode, the first chain needs room for the prompt and the token that comes out of it.
  const bool begins = prompt_tokens < kv_tokens(route);
  return begins ? tokens - prompt_tokens : 0;
}

Admission Router::add(std::uint64_t id, std::size_t chain, std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                      std::int64_t cached_tokens, QueueLimit queue_limit, std::vector<BlockKey> keys) {
  Scheduler& scheduler = groups_[group_of(chain)].scheduler;
  const Admission admission = scheduler.add(id, prompt_tokens, max_new_tokens, 0, cached_tokens, queue_limit,
                                            ways_[chain].lane, std::move(keys));
  if (admission != Admission::accepted) return admission;
  chain_of_.emplace(id, chain);
  load_[chains_[chain].route] += 1;
  return admission;
}

Admission Router::adopt(std::uint64_t id, std::size_t chain, std::int64_t known_tokens, std::int64_t max_new_tokens,
                        const CachedTokens& cached, std::vector<BlockKey> keys) {
  Scheduler& scheduler = groups_[group_of(chain)].scheduler;
  const Admission admission =
      scheduler.adopt(id, known_tokens, max_new_tokens, cached, ways_[chain].lane, std::move(keys));
  if (admission == Admission::accepted) {
    chain_of_.emplace(id, chain);
    load_[chains_[chain].route] += 1;
  }
  return admission;
}

void Router::add_key(std::uint64_t id, const BlockKey& key) {
  groups_[group_of(chain_of_.at(id))].scheduler.add_key(id, key);
}

void Router::cancel(std::uint64_t id) {
  groups_[group_of(chain_of_.at(id))].scheduler.cancel(id);
  forget(id);
}

void Router::forget(std::uint64_t id) {
  const auto found = chain_of_.find(id);
  MOTLEY_CHECK(found != chain_of_.end());
  load_[chains_[found->second].route] -= 1;
  chain_of_.erase(found);
}

std::optional<RoutedStep> Router::next() {
  for (std::size_t tries = 0; tries < groups_.size(); ++tries) {
    const std::size_t group = next_group_;
    next_group_ = (next_group_ + 1) % groups_.size();
    if (auto step = next(group)) return step;
  }
  return std::nullopt;
}

std::optional<RoutedStep> Router::next(std::size_t group) {
  auto scheduled = groups_[group].scheduler.next();
  if (!scheduled) return std::nullopt;
  under_way_[++last_step_] = {group, scheduled->id};
  return RoutedStep{last_step_, groups_[group].chains[scheduled->lane], std::move(scheduled->sequences),
                    std::move(scheduled->gone)};
}

void Router::measure(std::size_t chain, const StepLoad& load, const std::vector<double>& stage_s,
                     std::optional<double> alone_s) {
  const std::vector<PipelineTime::Visit>& visits = ways_[chain].times.believed().visits;
  MOTLEY_CHECK(stage_s.size() == visits.size());
  for (std::size_t hop = 0; hop < visits.size(); ++hop)
    if (stage_s[hop] > 0)
      for (const std::size_t other : groups_[group_of(chain)].chains)
        ways_[other].times.add_stage(visits[hop].stage, load, stage_s[hop]);
  if (!alone_s || std::ranges::count(stage_s, 0) > 0) return;
  ways_[chain].times.add_way(load, *alone_s - std::accumulate(stage_s.begin(), stage_s.end(), 0.0));
}

std::vector<double> Router::believed_s(std::size_t chain, const StepLoad& load) const {
  std::vector<double> seconds;
  for (const PipelineTime::Visit& visit : ways_[chain].times.believed().visits)
    seconds.push_back(visit.time.seconds(load));
  return seconds;
}

void Router::complete(std::uint64_t step, const std::set<std::uint64_t>& finished) {
  const auto found = under_way_.find(step);
  MOTLEY_CHECK(found != under_way_.end());
  for (const std::uint64_t id : finished) forget(id);
  groups_[found->second.group].scheduler.complete(found->second.scheduled_step, finished);
  under_way_.erase(found);
}

std::optional<std::size_t> choose_route(const std::vector<double>& weights, const std::vector<double>& load,
                                        const std::vector<bool>& masked, const std::vector<double>& saved) {
  MOTLEY_CHECK(weights.size() == load.size() && weights.size() == masked.size());
  MOTLEY_CHECK(saved.empty() || saved.size() == weights.size());
  // With the request itself, or a slow route would get one whenever it is empty.
  const auto relative_load = [&](std::size_t route) {
    return weights[route] > 0 ? (load[route] + 1) / weights[route] - (saved.empty() ? 0 : saved[route])
                              : std::numeric_limits<double>::infinity();
  };
  std::optional<std::size_t> best;
  for (std::size_t route = 0; route < weights.size(); ++route)
    if (!masked[route] && (!best || relative_load(route) < relative_load(*best))) best = route;
  return best;
}

}  // namespace motley
