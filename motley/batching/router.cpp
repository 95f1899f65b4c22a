#include "motley/batching/router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

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
    : times_(std::make_unique<StepTimes>(plan, options.cost)),
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
  group_of_chain_ = group_chains(hops);
  for (const RouteChain& chain : chains_) {
    std::vector<std::size_t>& stages = stages_of_chain_.emplace_back();
    for (std::size_t hop = 0; hop < chain.hops; ++hop) stages.push_back(times_->stage_of(chain, hop));
  }
  const std::size_t count = 1 + std::ranges::max(group_of_chain_);
  for (std::size_t group = 0; group < count; ++group) {
    std::vector<RouteChain> members;
    std::size_t last_member = 0;
    SchedulerLimits limits{.blocks = std::numeric_limits<std::int32_t>::max(),
                           .block_tokens = plan.step.block_tokens,
                           .max_tokens = plan.step.max_tokens,
                           .max_sequences = plan.step.max_sequences,
                           .micro_batches = 1,
                           .max_queue = options.max_queue};
    std::int64_t streaming = 0, planned = 0, batches = 1, buffer_tokens = std::numeric_limits<std::int64_t>::max();
    for (std::size_t chain = 0; chain < chains_.size(); ++chain) {
      if (group_of_chain_[chain] != group) continue;
      members.push_back(chains_[chain]);
      last_member = chain;
      planned = std::max(planned, plan.routes[chains_[chain].route].micro_batches);
      for (const Hop& hop : hops[chain]) {
        const Stage& stage = plan.stage(hop.stage);
        limits.blocks = std::min(limits.blocks, stage.kv_tokens / plan.step.block_tokens);
        batches = std::max(batches, stage.batches());
        if (stage.offload && stage.offload->kv.disk > 0)
          buffer_tokens = std::min(buffer_tokens, kv_buffer_tokens(stage.kv_tokens, stage.batches()));
      }
      streaming = std::max(streaming, std::ranges::count_if(hops[chain], [&](const Hop& hop) {
                             return plan.stage(hop.stage).offload.has_value();
                           }));
    }
    limits.max_tokens *= batches;
    limits.max_sequences *= batches;
    MeasuredPipeline pipeline(times_->pipeline(members));
    for (const RouteChain& chain : members) {
      if (streaming > 0) continue;
      const PipelineTime& own = members.size() == 1 ? pipeline.believed() : times_->pipeline({chain});
      limits.micro_batches = std::max(limits.micro_batches, micro_batches_of(plan, chain, own, options));
    }
    // A pass of a stage that offloads takes about as long for many tokens as for one: each step takes all there are,
    // and no more of them are under way than the plan says, or else than there are such stages.
    if (streaming > 0) limits.micro_batches = planned > 0 ? std::max<std::int64_t>(1, planned / batches) : streaming;
    const MakeStepRule& rule = streaming > 0 ? MakeStepRule(fixed_steps) : options.step_rule;
    Scheduler scheduler(limits, rule(pipeline.times(), limits));
    groups_.push_back({limits, buffer_tokens, std::move(pipeline), std::move(scheduler), {}, {}});
    if (members.size() == 1) groups_.back().only_chain = last_member;
  }
}

std::optional<std::size_t> Router::choose() const { return choose_route(weights_, load_, masked_); }

std::int64_t Router::kv_tokens(std::size_t chain) const {
  const Group& group = groups_[group_of_chain_[chain]];
  return std::min(group.limits.blocks * group.limits.block_tokens, group.buffer_tokens);
}

std::int64_t Router::room(std::size_t route, std::int64_t prompt_tokens) const {
  const std::int64_t tokens = std::min(context_, kv_tokens(decode_chain_[route].value_or(route)));
  // Where others decode, the first chain needs room for the prompt and the token that comes out of it.
  const bool begins = prompt_tokens < kv_tokens(route);
  return begins ? tokens - prompt_tokens : 0;
}

Admission Router::add(std::uint64_t id, std::size_t chain, std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                      std::int64_t cached_tokens, QueueLimit queue_limit) {
  Scheduler& scheduler = groups_[group_of_chain_[chain]].scheduler;
  const Admission admission = scheduler.add(id, prompt_tokens, max_new_tokens, 0, cached_tokens, queue_limit);
  if (admission != Admission::accepted) return admission;
  chain_of_.emplace(id, chain);
  load_[chains_[chain].route] += 1;
  return admission;
}

Admission Router::adopt(std::uint64_t id, std::size_t chain, std::int64_t known_tokens, std::int64_t max_new_tokens,
                        const CachedTokens& cached) {
  Scheduler& scheduler = groups_[group_of_chain_[chain]].scheduler;
  const Admission admission = scheduler.adopt(id, known_tokens, max_new_tokens, cached);
  if (admission == Admission::accepted) {
    chain_of_.emplace(id, chain);
    load_[chains_[chain].route] += 1;
  }
  return admission;
}

void Router::cancel(std::uint64_t id) {
  groups_[group_of_chain_[chain_of_.at(id)]].scheduler.cancel(id);
  forget(id);
}

void Router::forget(std::uint64_t id) {
  const auto found = chain_of_.find(id);
  MOTLEY_CHECK(found != chain_of_.end());
  load_[chains_[found->second].route] -= 1;
  chain_of_.erase(found);
}

std::vector<RoutedStep> Router::next() {
  for (std::size_t tries = 0; tries < groups_.size(); ++tries) {
    const std::size_t group = next_group_;
    next_group_ = (next_group_ + 1) % groups_.size();
    if (auto steps = next(group); !steps.empty()) return steps;
  }
  return {};
}

std::vector<RoutedStep> Router::next(std::size_t group) {
  auto scheduled = groups_[group].scheduler.next();
  return scheduled ? split(group, std::move(*scheduled)) : std::vector<RoutedStep>();
}

std::vector<RoutedStep> Router::split(std::size_t group, ScheduledStep scheduled) {
  std::vector<RoutedStep> steps;  // in the order of their chains
  if (groups_[group].only_chain) {
    steps.push_back({0, *groups_[group].only_chain, std::move(scheduled.sequences)});
  } else {
    for (ScheduledSequence& part : scheduled.sequences) {
      const std::size_t chain = chain_of_.at(part.id);
      auto step = std::ranges::lower_bound(steps, chain, {}, &RoutedStep::chain);
      if (step == steps.end() || step->chain != chain) step = steps.insert(step, {0, chain, {}});
      step->sequences.push_back(std::move(part));
    }
  }
  for (RoutedStep& step : steps) {
    step.id = ++last_step_;
    under_way_[step.id] = {group, scheduled.id};
  }
  groups_[group].under_way[scheduled.id].left = steps.size();
  return steps;
}

void Router::measure(std::size_t chain, const StepLoad& load, const std::vector<double>& stage_s,
                     std::optional<double> alone_s) {
  MeasuredPipeline& times = groups_[group_of_chain_[chain]].times;
  const std::vector<std::size_t>& stages = stages_of_chain_[chain];
  MOTLEY_CHECK(stage_s.size() == stages.size());
  for (std::size_t hop = 0; hop < stages.size(); ++hop)
    if (stage_s[hop] > 0) times.add_stage(stages[hop], load, stage_s[hop]);
  if (!alone_s || std::ranges::count(stage_s, 0) > 0) return;
  times.add_way(load, *alone_s - std::accumulate(stage_s.begin(), stage_s.end(), 0.0));
}

std::vector<double> Router::believed_s(std::size_t chain, const StepLoad& load) const {
  std::vector<double> seconds;
  for (const std::size_t stage : stages_of_chain_[chain])
    for (const PipelineTime::Visit& visit : groups_[group_of_chain_[chain]].times.believed().visits)
      if (visit.stage == stage && seconds.size() < stages_of_chain_[chain].size()) {
        seconds.push_back(visit.time.seconds(load));
        break;
      }
  return seconds;
}

void Router::complete(std::uint64_t step, const std::set<std::uint64_t>& finished) {
  const auto found = under_way_.find(step);
  MOTLEY_CHECK(found != under_way_.end());
  Group& group = groups_[found->second.group];
  const auto parts = group.under_way.find(found->second.scheduled_step);
  for (const std::uint64_t id : finished) forget(id);
  parts->second.finished.insert(finished.begin(), finished.end());
  if (--parts->second.left == 0) {
    group.scheduler.complete(found->second.scheduled_step, parts->second.finished);
    group.under_way.erase(parts);
  }
  under_way_.erase(found);
}

std::optional<std::size_t> choose_route(const std::vector<double>& weights, const std::vector<double>& load,
                                        const std::vector<bool>& masked) {
  MOTLEY_CHECK(weights.size() == load.size() && weights.size() == masked.size());
  // With the request itself, or a slow route would get one whenever it is empty.
  const auto relative_load = [&](std::size_t route) {
    return weights[route] > 0 ? (load[route] + 1) / weights[route] : std::numeric_limits<double>::infinity();
  };
  std::optional<std::size_t> best;
  for (std::size_t route = 0; route < weights.size(); ++route)
    if (!masked[route] && (!best || relative_load(route) < relative_load(*best))) best = route;
  return best;
}

}  // namespace motley
