#include "motley/serving/dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "motley/serving/cache_moves.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

void add_past(SchedulerCounts& sum, const SchedulerCounts& counts) {
  sum.preemptions += counts.preemptions;
  sum.prompt_tokens += counts.prompt_tokens;
  sum.found_tokens += counts.found_tokens;
}

}  // namespace

// The last token of a prompt that nothing follows is only scored, so that a prompt may fill the context.
std::int64_t Dispatcher::Request::to_compute() const {
  return std::ssize(tokens) - (asked.max_new_tokens == 0 && prompt_tokens > 1 ? 1 : 0);
}

Dispatcher::Dispatcher(std::shared_ptr<const ServePlan> plan, std::int64_t micro_batches, std::int64_t max_queue,
                       MakeStepRule step_rule, bool share_prefixes)
    : plan_(std::move(plan)),
      options_{.micro_batches = micro_batches, .max_queue = max_queue, .step_rule = std::move(step_rule), .cost = {}},
      share_prefixes_(share_prefixes),
      router_(*plan_, options_) {}

void Dispatcher::check(const GenerateRequest& request) const {
  const Architecture& arch = plan_->model.arch;
  const auto check_token = [&](std::int32_t token, std::string_view what) {
    if (token < 0 || token >= arch.vocabulary)
      throw input_error(
          fmt::format("{} holds token {}, which is not in the vocabulary of {}", what, token, arch.vocabulary),
          fmt::format("use tokens from 0 to {}", arch.vocabulary - 1));
  };
  if (request.prompt.empty()) throw input_error("the prompt is empty", "give at least one token");
  if (request.max_new_tokens < 0)
    throw input_error(fmt::format("the request asks for {} new tokens", request.max_new_tokens),
                      "ask for at least one, or for none with 0");
  for (const std::int32_t token : request.prompt) check_token(token, "the prompt");
  for (const std::int32_t token : request.stop_tokens) check_token(token, "the list of stop tokens");
  for (const auto& [token, bias] : request.sampling.logit_bias) check_token(token, "the logit bias");
  const std::int64_t longest = arch.context - (request.max_new_tokens == 0 ? 0 : 1);
  if (std::ssize(request.prompt) > longest)
    throw input_error(
        fmt::format("the prompt has {} tokens, but the model's context is {}", request.prompt.size(), arch.context),
        fmt::format("shorten it to {} tokens", longest));
}

// Begins the keys again: a sequence is new to its scheduler. What is scored is computed.
Prefix Dispatcher::prefix_of(Request& request) const {
  Prefix prefix{.prompt_tokens = request.to_compute()};
  request.keys.reset();
  if (!share_prefixes_ || request.asked.prompt_logprobs) return prefix;
  prefix.keys = request.keys.emplace(plan_->step.block_tokens, request.asked.cache_salt).extend(request.tokens);
  if (const auto named = routes_by_name_.find(request.asked.cache_name); named != routes_by_name_.end())
    prefix.route = named->second;
  return prefix;
}

void Dispatcher::remember(const Request& request, std::size_t route) {
  constexpr std::size_t most_names = 4096;
  const std::string& name = request.asked.cache_name;
  if (name.empty()) return;
  if (routes_by_name_.insert_or_assign(name, route).second) names_.push_back(name);
  if (names_.size() <= most_names) return;
  routes_by_name_.erase(names_.front());
  names_.pop_front();
}

// Of the routes with room that on which it ends first; where there is none, that with the most.
std::size_t Dispatcher::route_for(const Prefix& prefix) {
  std::size_t largest = 0;
  for (std::size_t route = 0; route < plan_->routes.size(); ++route) {
    router_.mask(route, router_.room(route, prefix.prompt_tokens) < 1);
    if (router_.kv_tokens(route) > router_.kv_tokens(largest)) largest = route;
  }
  const std::size_t chosen = router_.choose(prefix).value_or(largest);
  for (std::size_t route = 0; route < plan_->routes.size(); ++route) router_.mask(route, false);
  return chosen;
}

std::uint64_t Dispatcher::add(GenerateRequest request, std::optional<std::size_t> chosen_route) {
  check(request);
  Request added{.asked = std::move(request)};
  added.tokens = std::move(added.asked.prompt);
  added.prompt_tokens = added.tokens.size();
  Prefix prefix = prefix_of(added);
  const std::int64_t to_compute = prefix.prompt_tokens;
  const std::size_t route = chosen_route ? *chosen_route : route_for(prefix);
  const std::int64_t kv_tokens = router_.kv_tokens(route);
  const std::int64_t room = router_.room(route, to_compute);
  if (room < 1)
    throw input_error(fmt::format("the prompt has {} tokens, and route {} has room for {} tokens of keys and values",
                                  added.prompt_tokens, plan_->routes[route].id, kv_tokens),
                      fmt::format("shorten it to {} tokens", kv_tokens - 1));
  // Every sequence samples; where no token is wanted, it is dropped.
  added.max_new_tokens = std::clamp<std::int64_t>(added.asked.max_new_tokens, 1, room);

  const std::uint64_t id = last_request_ + 1;
  added.held = holding_ && !chosen_route;
  const auto refuse = [](std::int64_t waiting) {
    throw Error(ErrorCode::limit, fmt::format("the queue is full: {} requests wait", waiting), "try again later");
  };
  if (added.held && std::ssize(requests_) >= options_.max_queue) refuse(std::ssize(requests_));
  if (!added.held && router_.add(id, route, to_compute, added.max_new_tokens, 0, QueueLimit::applies,
                                 std::move(prefix.keys)) == Admission::queue_full)
    refuse(router_.counts(router_.group_of(route)).waiting);
  if (!added.held) remember(added, route);
  last_request_ = id;
  requests_[id] = std::move(added);
  return id;
}

// False: no route has room for one more token.
bool Dispatcher::place(std::uint64_t id, Request& request) {
  Prefix prefix = prefix_of(request);
  const std::int64_t known = prefix.prompt_tokens;
  const std::size_t route = route_for(prefix);
  const std::int64_t left = std::min(request.max_new_tokens - request.generated(), router_.room(route, known));
  if (left < 1) return false;
  request.max_new_tokens = request.generated() + left;
  request.held = false;
  remember(request, route);
  const Admission admission = router_.add(id, route, known, left, 0, QueueLimit::waived, std::move(prefix.keys));
  MOTLEY_CHECK(admission == Admission::accepted);
  return true;
}

CacheHandover Dispatcher::change_plan(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch,
                                      const std::set<std::string>& lost) {
  if (!adopts_) kept_.take(*plan_, epoch_, router_);
  adopts_ = true;
  epoch_ = epoch;
  kept_.follow(*plan);
  for (auto& [device, speed] : speeds_)
    if (std::ranges::count(worker_devices(*plan), device) == 0) speed.rest();
  for (std::size_t group = 0; group < router_.groups(); ++group) add_past(earlier_, router_.counts(group));
  routes_by_name_.clear();
  names_.clear();
  const std::shared_ptr<const ServePlan> before = std::exchange(plan_, std::move(plan));
  router_ = Router(*plan_, options_);
  under_way_.clear();
  tokens_under_way_ = 0;
  for (const std::uint64_t id : warm_ups_) requests_.erase(id);
  warm_ups_.clear();
  for (auto& [id, request] : requests_) request.held = true;
  holding_ = true;
  CacheHandover moved = handover(*before, lost);
  kept_.receive(moved.moves, *plan_);
  return moved;
}

CacheHandover Dispatcher::handover(const ServePlan& before, const std::set<std::string>& lost) const {
  CacheHandover handover{cache_moves(before, *plan_, lost), kept_.blocks(*plan_), kept_.slots(*plan_)};
  if (handover.moves.empty() || handover.blocks.empty()) return {};
  const auto full_step = static_cast<double>(plan_->step.max_tokens);
  const double steps = std::ceil(static_cast<double>(kept_.tokens()) / full_step);
  double again_s = 0;
  for (const PipelineTime::Visit& visit : router_.times(0).believed().visits)
    again_s += steps * visit.time.seconds({.tokens = full_step, .context = full_step / 2});
  const double moving_s = seconds_of(handover, *plan_);
  return moving_s < again_s ? std::move(handover) : CacheHandover();
}

// Of routes that have a request's keys and values the one that lacks the fewest stages.
void Dispatcher::adopt(const CacheEpochs& kept) {
  std::map<std::size_t, std::size_t> heirs;  // of groups of the earlier router, by groups of this one
  for (auto& [id, request] : requests_) {
    // The stages that have the tokens cannot score them.
    if (!request.held || request.asked.prompt_logprobs || request.asked.max_new_tokens == 0) continue;
    std::optional<CachedTokens> best;
    std::size_t route = 0;
    for (std::size_t r = 0; r < plan_->routes.size(); ++r) {
      const auto there = kept_.find(id, *plan_, plan_->routes[r], kept);
      if (!there || (best && there->lacking_stages >= best->lacking_stages)) continue;
      best = there;
      route = r;
    }
    if (!best) continue;
    const std::size_t earlier = kept_.group_of(id);
    if (heirs.emplace(router_.group_of(route), earlier).first->second != earlier) continue;
    const std::int64_t known = request.to_compute();
    const std::int64_t left = std::min(request.max_new_tokens - request.generated(), router_.room(route, known));
    if (left < 1 || router_.adopt(id, route, known, left, *best, prefix_of(request).keys) != Admission::accepted)
      continue;
    request.max_new_tokens = request.generated() + left;
    request.held = false;
  }
  kept_.clear();
  adopts_ = false;
}

void Dispatcher::warm_up() {
  const auto bos = static_cast<std::int32_t>(plan_->model.arch.bos_token.value_or(0));
  for (std::size_t route = 0; route < plan_->routes.size(); ++route)
    warm_ups_.insert(add({.prompt = {bos}, .max_new_tokens = 1, .sampling = {}, .stop_tokens = {}}, route));
}

std::vector<GenerateEvent> Dispatcher::resume() {
  holding_ = false;
  std::vector<GenerateEvent> events;
  for (auto& [id, request] : requests_) {
    if (!request.held || place(id, request)) continue;
    events.push_back(
        {.request = id,
         .token = {},
         .finished = FinishReason::no_room,
         .stop_cause = fmt::format("the deployment's plan has changed; the request has {} tokens, but no route of the "
                                   "new plan has room for more than {} tokens of keys and values",
                                   request.tokens.size(),
                                   router_.kv_tokens(route_for({.prompt_tokens = std::ssize(request.tokens)})))});
  }
  for (const GenerateEvent& event : events) requests_.erase(event.request);
  return events;
}

bool Dispatcher::cancel(std::uint64_t request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return false;
  if (!found->second.held) router_.cancel(request);
  warm_ups_.erase(request);
  requests_.erase(found);
  return true;
}

std::vector<std::uint64_t> Dispatcher::cancel_all() {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const std::uint64_t id : ids) cancel(id);
  return ids;
}

std::optional<Step> Dispatcher::next() {
  auto routed = router_.next();
  return routed ? std::optional(fill(std::move(*routed))) : std::nullopt;
}

// Of tokens that were computed before.
void Dispatcher::count_replayed(std::size_t route, const ScheduledSequence& part) {
  const std::int64_t again = std::min(part.count, requests_.at(part.id).computed - part.position);
  if (again <= 0) return;
  const std::vector<Hop>& path = plan_->routes[route].path;
  const std::size_t passed = part.stages == 0 ? path.size() : static_cast<std::size_t>(part.stages);
  for (std::size_t hop = 0; hop < passed; ++hop) replayed_[path[hop].stage] += again;
}

// Parts that pass more stages come first.
Step Dispatcher::fill(RoutedStep routed) {
  Step step{.step = routed.id, .route = routed.chain, .sequences = {}, .gone = std::move(routed.gone)};
  StepUnderWay& under_way = under_way_[routed.id];
  under_way.chain = routed.chain;
  const std::int64_t window = widest_window(plan_->model.arch);
  for (const ScheduledSequence& part : routed.sequences) {
    const StepSequence& filled = step.sequences.emplace_back(fill(part));
    if (filled.scoring)
      under_way.scored[part.id] = {part.position + 1, filled.scoring->targets.size(), filled.scoring->top};
    under_way.tokens += part.count;
    under_way.all_stages = under_way.all_stages && part.stages == 0;
    under_way.ends.emplace_back(part.id, part.position + part.count);
    count_replayed(routed.chain, part);
    Request& request = requests_.at(part.id);
    if (!std::exchange(request.begun, true)) request.untold = part.position;
    add_sequence(under_way.load, window, part.position, part.count, part.samples);
    if (part.samples) under_way.samples.insert(part.id);
  }
  tokens_under_way_ += under_way.tokens;
  if (!under_way.all_stages)
    std::ranges::stable_sort(step.sequences, std::ranges::greater(), [](const StepSequence& part) {
      return part.stages == 0 ? std::numeric_limits<std::int32_t>::max() : part.stages;
    });
  return step;
}

StepSequence Dispatcher::fill(const ScheduledSequence& part) const {
  const Request& request = requests_.at(part.id);
  const auto first = request.tokens.begin() + part.position;
  StepSequence sequence{.sequence = part.id,
                        .position = part.position,
                        .count = part.count,
                        .tokens = {first, first + part.count},
                        .blocks = part.blocks,
                        .sampling = {},
                        .scoring = scoring(part),
                        .stages = part.stages,
                        .known_blocks = part.known_blocks,
                        .slot = part.slot};
  if (!part.samples) return sequence;
  Sampling& sampling = sequence.sampling.emplace(request.asked.sampling);
  if (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0)
    sampling.generated.assign(request.tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt_tokens),
                              request.tokens.end());
  if (request.generated() < request.asked.min_new_tokens) {
    sampling.forbidden = request.asked.stop_tokens;
    if (!request.asked.ignore_eos)
      for (const std::int64_t eos : plan_->model.arch.eos_tokens)
        sampling.forbidden.push_back(static_cast<std::int32_t>(eos));
  }
  return sequence;
}

// Of the prompt's tokens that follow those of a part; none where all of them have been scored.
std::optional<Scoring> Dispatcher::scoring(const ScheduledSequence& part) const {
  const Request& request = requests_.at(part.id);
  if (!request.asked.prompt_logprobs) return std::nullopt;
  const std::int64_t first = part.position + 1;
  const std::int64_t end = std::min(first + part.count, static_cast<std::int64_t>(request.prompt_tokens));
  if (end <= std::ssize(request.scores) + 1 || end <= first) return std::nullopt;
  return Scoring{.targets = {request.tokens.begin() + first, request.tokens.begin() + end},
                 .top = *request.asked.prompt_logprobs};
}

// A sequence that was recomputed brings some scores again.
void Dispatcher::take_scores(const StepUnderWay& step, const StepResult& result) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::peer, fmt::format("the answer to step {} {}", result.step, what));
  };
  if (result.scores.size() != step.scored.size())
    refuse(fmt::format("has scores of {} sequences instead of {}", result.scores.size(), step.scored.size()));
  std::set<std::uint64_t> seen;
  for (const SequenceScores& scores : result.scores) {
    const auto asked = step.scored.find(scores.sequence);
    if (asked == step.scored.end() || !seen.insert(scores.sequence).second ||
        scores.scores.size() != asked->second.targets)
      return refuse(
          fmt::format("has {} scores of sequence {}, which were not asked for", scores.scores.size(), scores.sequence));
    for (const TokenScore& score : scores.scores)
      for (const TokenLogprob& other : score.top)
        if (other.token < 0 || other.token >= plan_->model.arch.vocabulary)
          refuse(fmt::format("has a score of token {}, which is not in the vocabulary", other.token));
    const auto request = requests_.find(scores.sequence);
    if (request == requests_.end()) continue;  // cancelled meanwhile
    std::vector<TokenScore>& known = request->second.scores;
    for (std::size_t i = 0; i < scores.scores.size(); ++i)
      if (asked->second.position + static_cast<std::int64_t>(i) == std::ssize(known) + 1)
        known.push_back(scores.scores[i]);
  }
}

std::vector<GenerateEvent> Dispatcher::complete(const StepResult& result, const StepSeconds& measured) {
  const auto found = under_way_.find(result.step);
  if (found == under_way_.end())
    throw Error(ErrorCode::peer, fmt::format("an answer to step {}, which is not under way", result.step));
  const StepUnderWay& step = found->second;

  // Scores cost time that the times of steps do not know of, and these know whole ways alone.
  if (warm() && step.scored.empty() && step.all_stages && !measured.stage_s.empty()) {
    router_.measure(step.chain, step.load, measured.stage_s, measured.alone_s);
    for (const auto& [device, seconds] : believed_by_device(step))
      if (const auto took = measured.device_s.find(device); took != measured.device_s.end())
        speeds_[device].add(step.tokens, seconds, took->second);
  }
  take_scores(step, result);
  std::vector<GenerateEvent> events;
  std::set<std::uint64_t> sampled, finished;
  for (const SampledToken& token : result.tokens) {
    if (!step.samples.contains(token.sequence) || !sampled.insert(token.sequence).second || token.token < 0 ||
        token.token >= plan_->model.arch.vocabulary)
      throw Error(ErrorCode::peer, fmt::format("token {} for sequence {} in the answer to step {} was not asked for",
                                               token.token, token.sequence, result.step));
    if (requests_.contains(token.sequence) && take_token(token.sequence, token, events))
      finished.insert(token.sequence);
  }
  if (sampled.size() != step.samples.size())
    throw Error(ErrorCode::peer, fmt::format("the answer to step {} has {} tokens instead of {}", result.step,
                                             sampled.size(), step.samples.size()));
  for (const auto& [id, end] : step.ends)
    if (const auto request = requests_.find(id); request != requests_.end())
      request->second.computed = std::max(request->second.computed, end);
  tokens_under_way_ -= step.tokens;
  router_.complete(result.step, finished);
  under_way_.erase(found);
  return events;
}

std::map<std::string, double> Dispatcher::believed_by_device(const StepUnderWay& step) const {
  std::map<std::string, double> seconds;
  const std::vector<double> stage_s = router_.believed_s(step.chain, step.load);
  const std::vector<Hop>& path = plan_->routes[step.chain].path;
  for (std::size_t hop = 0; hop < stage_s.size(); ++hop)
    for (const std::string& device : plan_->stage(path[hop].stage).devices) seconds[device] = stage_s[hop];
  return seconds;
}

std::map<std::string, double> Dispatcher::slow(const std::vector<StepAtWork>& at_work) const {
  std::map<std::string, SpeedMonitor> speeds = speeds_;
  for (const auto& [device, step, for_s] : at_work)
    if (const auto found = under_way_.find(step); found != under_way_.end() && found->second.all_stages)
      speeds[device].add(found->second.tokens, believed_by_device(found->second)[device], for_s);
  return slow_devices(speeds);
}

// True when the request ends with this token.
bool Dispatcher::take_token(std::uint64_t id, const SampledToken& token, std::vector<GenerateEvent>& events) {
  Request& request = requests_.at(id);
  std::optional<FinishReason> finished;
  if (request.asked.prompt_logprobs) {
    events.push_back({.request = id, .prompt_scores = std::move(request.scores)});
    request.asked.prompt_logprobs.reset();
  }
  if (request.asked.max_new_tokens == 0) {
    finished = FinishReason::length;
  } else if (is_end(request, token.token)) {
    finished = FinishReason::stop;
  } else {
    request.tokens.push_back(token.token);
    if (request.keys)
      for (const BlockKey& key : request.keys->extend(request.tokens)) router_.add_key(id, key);
    events.push_back({.request = id, .token = token, .found_tokens = std::exchange(request.untold, 0)});
    if (request.generated() == request.max_new_tokens) finished = FinishReason::length;
  }
  if (!finished) return false;
  events.push_back({.request = id, .finished = finished, .found_tokens = request.untold});
  warm_ups_.erase(id);
  requests_.erase(id);
  return true;
}

bool Dispatcher::is_end(const Request& request, std::int32_t token) const {
  const std::vector<std::int64_t>& eos = plan_->model.arch.eos_tokens;
  return std::ranges::count(request.asked.stop_tokens, token) > 0 ||
         (!request.asked.ignore_eos && std::ranges::count(eos, std::int64_t{token}) > 0);
}

void Dispatcher::describe(DriverStatus& status) const {
  status.waiting.assign(plan_->routes.size(), 0);
  status.running.assign(plan_->routes.size(), 0);
  status.held = std::ranges::count_if(requests_, [](const auto& entry) { return entry.second.held; });
  SchedulerCounts past = earlier_;
  status.replayed_tokens = replayed_;
  status.pipelines.clear();
  for (std::size_t chain = 0; chain < router_.chains().size(); ++chain) {
    const MeasuredPipeline& times = router_.times(chain);
    PipelineStatus& pipeline = status.pipelines.emplace_back();
    pipeline.predicted = times.believed();
    pipeline.measured = *times.times();
    for (const PipelineTime::Visit& visit : pipeline.predicted.visits)
      pipeline.steps.push_back(times.steps(visit.stage));
    pipeline.alone = times.alone();
  }
  std::vector<bool> counted(router_.groups(), false);
  for (std::size_t route = 0; route < plan_->routes.size(); ++route) {
    const std::size_t group = router_.group_of(route);
    if (counted[group]) continue;
    counted[group] = true;
    const SchedulerCounts counts = router_.counts(group);
    status.waiting[route] = counts.waiting;
    status.running[route] = counts.running;
    add_past(past, counts);
    status.free_blocks += counts.free_blocks;
    status.total_blocks += router_.blocks(group);
  }
  status.preemptions = past.preemptions;
  status.prefix_tokens = past.prompt_tokens;
  status.found_tokens = past.found_tokens;
}

}  // namespace motley
