#include "motley/server/dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace motley {
namespace {

bool share_a_stage(const Route& a, const Route& b) {
  return std::ranges::any_of(
      a.path, [&](const Hop& hop) { return std::ranges::find(b.path, hop.stage, &Hop::stage) != b.path.end(); });
}

// The group of each route, numbered without gaps: routes that share a stage, directly or through others, are in one.
std::vector<std::size_t> group_routes(const std::vector<Route>& routes) {
  std::vector<std::size_t> group(routes.size());
  for (std::size_t route = 0; route < routes.size(); ++route) {
    group[route] = route;
    for (std::size_t earlier = 0; earlier < route; ++earlier)
      if (share_a_stage(routes[earlier], routes[route]))
        std::ranges::replace(group, std::size_t{group[route]}, std::size_t{group[earlier]});
  }
  std::map<std::size_t, std::size_t> numbers;
  for (std::size_t& g : group) g = numbers.emplace(g, numbers.size()).first->second;
  return group;
}

SchedulerLimits limits_of(const ServePlan& plan, const std::vector<const Route*>& routes, std::int64_t micro_batches,
                          std::int64_t max_queue) {
  SchedulerLimits limits{.blocks = std::numeric_limits<std::int32_t>::max(),
                         .block_tokens = plan.step.block_tokens,
                         .max_tokens = plan.step.max_tokens,
                         .max_sequences = plan.step.max_sequences,
                         .micro_batches = std::max<std::int64_t>(micro_batches, 1),
                         .max_queue = max_queue};
  for (const Route* route : routes) {
    for (const Hop& hop : route->path)
      limits.blocks = std::min(limits.blocks, plan.stage(hop.stage).kv_tokens / plan.step.block_tokens);
    if (micro_batches == 0 && route->path.size() > 1)
      limits.micro_batches = std::max(limits.micro_batches, std::ssize(route->path) + 1);
  }
  return limits;
}

}  // namespace

Dispatcher::Dispatcher(const ServePlan& plan, std::int64_t micro_batches, std::int64_t max_queue)
    : plan_(plan), load_(plan.routes.size(), 0), group_of_route_(group_routes(plan.routes)) {
  for (const Route& route : plan.routes) weights_.push_back(route.weight);
  const std::size_t count = 1 + std::ranges::max(group_of_route_);
  for (std::size_t group = 0; group < count; ++group) {
    std::vector<const Route*> routes;
    for (std::size_t route = 0; route < plan.routes.size(); ++route)
      if (group_of_route_[route] == group) routes.push_back(&plan.routes[route]);
    const SchedulerLimits limits = limits_of(plan, routes, micro_batches, max_queue);
    groups_.push_back({limits, Scheduler(limits), {}});
  }
}

void Dispatcher::check(const GenerateRequest& request) const {
  const Architecture& arch = plan_.model.arch;
  const auto check_token = [&](std::int32_t token, std::string_view what) {
    if (token < 0 || token >= arch.vocabulary)
      throw input_error(
          fmt::format("{} holds token {}, which is not in the vocabulary of {}", what, token, arch.vocabulary));
  };
  if (request.prompt.empty()) throw input_error("the prompt is empty", "give at least one token");
  if (request.max_new_tokens < 1)
    throw input_error(fmt::format("{} new tokens are asked for", request.max_new_tokens), "ask for at least one");
  for (const std::int32_t token : request.prompt) check_token(token, "the prompt");
  for (const std::int32_t token : request.stop_tokens) check_token(token, "the list of stop tokens");
  for (const auto& [token, bias] : request.sampling.logit_bias) check_token(token, "the logit bias");
  if (std::ssize(request.prompt) >= arch.context)
    throw input_error(
        fmt::format("the prompt has {} tokens, and the model's context is {}", request.prompt.size(), arch.context),
        fmt::format("shorten it to {} tokens", arch.context - 1));
}

std::uint64_t Dispatcher::add(GenerateRequest request, std::optional<std::size_t> chosen_route) {
  check(request);
  const std::size_t route = chosen_route.value_or(choose_route(weights_, load_));
  RouteGroup& group = groups_[group_of_route_[route]];
  const std::int64_t prompt_tokens = std::ssize(request.prompt);
  const std::int64_t kv_tokens = group.limits.blocks * group.limits.block_tokens;
  const std::int64_t room = std::min(plan_.model.arch.context, kv_tokens) - prompt_tokens;
  if (room < 1)
    throw input_error(fmt::format("the prompt has {} tokens, and route {} has room for {} tokens of keys and values",
                                  prompt_tokens, plan_.routes[route].id, kv_tokens),
                      fmt::format("shorten it to {} tokens", kv_tokens - 1));
  const std::int64_t max_new_tokens = std::min(request.max_new_tokens, room);

  const std::uint64_t id = last_request_ + 1;
  if (group.scheduler.add(id, prompt_tokens, max_new_tokens) == Admission::queue_full)
    throw Error(ErrorCode::limit, fmt::format("the queue is full: {} requests wait", group.scheduler.counts().waiting),
                "try again later");
  last_request_ = id;
  std::vector<std::int32_t> tokens = std::move(request.prompt);
  requests_[id] = {std::move(request), std::move(tokens), static_cast<std::size_t>(prompt_tokens), max_new_tokens,
                   route};
  load_[route] += 1;
  return id;
}

bool Dispatcher::cancel(std::uint64_t request) {
  const auto found = requests_.find(request);
  if (found == requests_.end()) return false;
  groups_[group_of_route_[found->second.route]].scheduler.cancel(request);
  forget(request);
  return true;
}

std::vector<std::uint64_t> Dispatcher::cancel_all() {
  std::vector<std::uint64_t> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const std::uint64_t id : ids) cancel(id);
  return ids;
}

void Dispatcher::forget(std::uint64_t id) {
  load_[requests_.at(id).route] -= 1;
  requests_.erase(id);
}

std::optional<Step> Dispatcher::next() {
  for (std::size_t tries = 0; ready_.empty() && tries < groups_.size(); ++tries) {
    const std::size_t group = next_group_;
    next_group_ = (next_group_ + 1) % groups_.size();
    if (const auto scheduled = groups_[group].scheduler.next()) split(group, *scheduled);
  }
  if (ready_.empty()) return std::nullopt;
  Step step = std::move(ready_.back());
  ready_.pop_back();
  return step;
}

// One step for each route that has sequences in the scheduled one.
void Dispatcher::split(std::size_t group, const ScheduledStep& scheduled) {
  std::map<std::size_t, Step> by_route;
  for (const ScheduledSequence& part : scheduled.sequences)
    by_route[requests_.at(part.id).route].sequences.push_back(fill(part));
  groups_[group].under_way[scheduled.id].left = by_route.size();
  for (auto& [route, step] : by_route) {
    step.step = ++last_step_;
    step.route = route;
    StepUnderWay& under_way = under_way_[step.step];
    under_way.group = group;
    under_way.scheduled_step = scheduled.id;
    for (const StepSequence& sequence : step.sequences) {
      under_way.tokens += sequence.count;
      if (sequence.sampling) under_way.samples.insert(sequence.sequence);
    }
    tokens_under_way_ += under_way.tokens;
    ready_.insert(ready_.begin(), std::move(step));  // taken from the back
  }
}

StepSequence Dispatcher::fill(const ScheduledSequence& part) const {
  const Request& request = requests_.at(part.id);
  const auto first = request.tokens.begin() + part.position;
  StepSequence sequence{.sequence = part.id,
                        .position = part.position,
                        .count = part.count,
                        .tokens = {first, first + part.count},
                        .blocks = part.blocks,
                        .sampling = {}};
  if (!part.samples) return sequence;
  Sampling& sampling = sequence.sampling.emplace(request.asked.sampling);
  if (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0)
    sampling.generated.assign(request.tokens.begin() + static_cast<std::ptrdiff_t>(request.prompt_tokens),
                              request.tokens.end());
  if (request.generated() < request.asked.min_new_tokens) {
    sampling.forbidden = request.asked.stop_tokens;
    if (!request.asked.ignore_eos)
      for (const std::int64_t eos : plan_.model.arch.eos_tokens)
        sampling.forbidden.push_back(static_cast<std::int32_t>(eos));
  }
  return sequence;
}

std::vector<RequestEvent> Dispatcher::complete(const StepResult& result) {
  const auto found = under_way_.find(result.step);
  if (found == under_way_.end())
    throw Error(ErrorCode::peer, fmt::format("an answer to step {}, which is not under way", result.step));
  const StepUnderWay& step = found->second;
  RouteGroup& group = groups_[step.group];
  const auto parts = group.under_way.find(step.scheduled_step);

  std::vector<RequestEvent> events;
  std::set<std::uint64_t> sampled;
  for (const SampledToken& token : result.tokens) {
    if (!step.samples.contains(token.sequence) || !sampled.insert(token.sequence).second || token.token < 0 ||
        token.token >= plan_.model.arch.vocabulary)
      throw Error(ErrorCode::peer, fmt::format("token {} for sequence {} in the answer to step {} was not asked for",
                                               token.token, token.sequence, result.step));
    if (requests_.contains(token.sequence) && take_token(token.sequence, token, events))
      parts->second.finished.insert(token.sequence);
  }
  if (sampled.size() != step.samples.size())
    throw Error(ErrorCode::peer, fmt::format("the answer to step {} has {} tokens instead of {}", result.step,
                                             sampled.size(), step.samples.size()));
  tokens_under_way_ -= step.tokens;
  if (--parts->second.left == 0) {
    group.scheduler.complete(step.scheduled_step, parts->second.finished);
    group.under_way.erase(parts);
  }
  under_way_.erase(found);
  return events;
}

// True when the request ends with this token.
bool Dispatcher::take_token(std::uint64_t id, const SampledToken& token, std::vector<RequestEvent>& events) {
  Request& request = requests_.at(id);
  std::optional<FinishReason> finished;
  if (is_end(request, token.token)) {
    finished = FinishReason::stop;
  } else {
    request.tokens.push_back(token.token);
    events.push_back({id, {.token = token, .finished = {}, .stop_cause = {}}});
    if (request.generated() == request.max_new_tokens) finished = FinishReason::length;
  }
  if (!finished) return false;
  events.push_back({id, {.token = {}, .finished = finished, .stop_cause = {}}});
  forget(id);
  return true;
}

bool Dispatcher::is_end(const Request& request, std::int32_t token) const {
  const std::vector<std::int64_t>& eos = plan_.model.arch.eos_tokens;
  return std::ranges::count(request.asked.stop_tokens, token) > 0 ||
         (!request.asked.ignore_eos && std::ranges::count(eos, std::int64_t{token}) > 0);
}

void Dispatcher::describe(DriverStatus& status) const {
  status.waiting.assign(plan_.routes.size(), 0);
  status.running.assign(plan_.routes.size(), 0);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const SchedulerCounts counts = groups_[group].scheduler.counts();
    const auto route = std::ranges::find(group_of_route_, group) - group_of_route_.begin();
    status.waiting[static_cast<std::size_t>(route)] = counts.waiting;
    status.running[static_cast<std::size_t>(route)] = counts.running;
    status.preemptions += counts.preemptions;
    status.free_blocks += counts.free_blocks;
    status.total_blocks += groups_[group].limits.blocks;
  }
}

}  // namespace motley
