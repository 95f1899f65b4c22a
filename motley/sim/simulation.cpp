#include "motley/sim/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/sim/summary.hpp"

namespace motley::sim {
namespace {

RouterOptions with_costs(const SimOptions& options) {
  RouterOptions router = options.router;
  router.cost = options.cost;
  if (options.times)
    router.step_rule = [make = router.step_rule, times = std::make_shared<const PipelineTime>(*options.times)](
                           const PipelineHandle&, const SchedulerLimits& limits) { return make(times, limits); };
  return router;
}

}  // namespace

Simulation::Simulation(const ServePlan& plan, const std::vector<TraceRequest>& requests, const SimOptions& options)
    : plan_(plan),
      options_(options),
      router_(plan, with_costs(options)),
      network_(plan, router_, options.times),
      stages_(plan.stages.size()),
      links_(network_.links().size()),
      last_arrival_s_(router_.chains().size()),
      faults_of_stage_(plan.stages.size(), 0),
      queues_(router_.groups()),
      tokens_of_class_(plan.workload.classes.size(), 0) {
  for (std::size_t chain = 0; chain < last_arrival_s_.size(); ++chain)
    last_arrival_s_[chain].assign(router_.chains()[chain].hops + 1, 0);
  read_requests(requests);
  read_faults();
  for (std::size_t group = 0; group < router_.groups(); ++group) queues_[group].counts = router_.counts(group);
  if (options.record != Record::timeline) return;
  timeline_.emplace();
  timeline_->stages = plan.stages.size();
  for (const Stage& stage : plan.stages) timeline_->tracks.push_back(stage.id);
  for (const LinkModel& link : network_.links())
    timeline_->tracks.push_back(fmt::format("{} > {}", link.from, link.to));
}

void Simulation::read_requests(const std::vector<TraceRequest>& requests) {
  std::unordered_map<std::string, std::int32_t> numbers;
  std::vector<std::string> names;
  for (const RequestClass& described : plan_.workload.classes) {
    numbers.emplace(described.name, static_cast<std::int32_t>(names.size()));
    names.push_back(described.name);
  }
  records_.reserve(requests.size());
  for (const TraceRequest& request : requests) {
    const auto number = numbers.find(request.class_name);
    if (number == numbers.end())
      throw input_error(
          fmt::format("a request has the class \"{}\", which is not in the workload", request.class_name),
          did_you_mean(request.class_name, names, fmt::format("choose one of {}", fmt::join(names, ", "))));
    if (request.prompt_tokens < 1 || request.output_tokens < 1 || !(request.arrival_s >= 0) ||
        (!records_.empty() && request.arrival_s < records_.back().arrival_s))
      throw input_error(fmt::format("request {}: arrival {} s, {} prompt and {} output tokens", records_.size(),
                                    request.arrival_s, request.prompt_tokens, request.output_tokens),
                        "sort requests by arrival, each with at least one prompt token and one output token");
    records_.push_back({.arrival_s = request.arrival_s,
                        .prompt_tokens = request.prompt_tokens,
                        .output_tokens = request.output_tokens,
                        .request_class = number->second});
  }
  open_.resize(records_.size());
}

void Simulation::read_faults() {
  for (const Fault& fault : options_.faults) {
    plan_.cluster.find_device(fault.device);
    if (!(fault.from_s >= 0) || !(fault.until_s > fault.from_s))
      throw input_error(fmt::format("{} leaves at {} s and returns at {} s", fault.device, fault.from_s, fault.until_s),
                        "give a return after the loss");
    for (std::uint32_t stage = 0; stage < plan_.stages.size(); ++stage) {
      if (std::ranges::find(plan_.stages[stage].devices, fault.device) == plan_.stages[stage].devices.end()) continue;
      edges_.push_back({fault.from_s, stage, true, fault.device});
      if (fault.until_s < never_s) edges_.push_back({fault.until_s, stage, false, fault.device});
    }
  }
  std::ranges::stable_sort(edges_, {}, &FaultEdge::time_s);
}

// ---- events ----

SimResult Simulation::run() {
  constexpr std::int64_t events_per_report = 1 << 14;
  const auto total = static_cast<std::int64_t>(records_.size());
  while (settled_ < total) {
    const double time_s = next_time_s();
    if (time_s == never_s) break;  // what is open has no route to go
    now_s_ = std::min(time_s, options_.stop_s);
    if (time_s >= options_.stop_s) break;
    advance();
    if (++handled_ % events_per_report == 0 && options_.progress)
      options_.progress(static_cast<double>(settled_) / static_cast<double>(total));
  }
  return result();
}

// When the next request comes to be scheduled.
double Simulation::next_arrival_s() const {
  return next_request_ < records_.size() ? records_[next_request_].arrival_s + network_.request_s() : never_s;
}

double Simulation::next_time_s() const {
  const double arrival_s = next_arrival_s();
  const double edge_s = next_edge_ < edges_.size() ? edges_[next_edge_].time_s : never_s;
  return std::min({arrival_s, edge_s, events_.empty() ? never_s : events_.first().time_s});
}

// Of what happens at one time: faults, then arrivals, then the rest.
void Simulation::advance() {
  if (next_edge_ < edges_.size() && edges_[next_edge_].time_s == now_s_) return apply(edges_[next_edge_++]);
  if (next_arrival_s() == now_s_) return arrive(static_cast<std::uint32_t>(next_request_++));
  handle(events_.pop());
}

void Simulation::handle(const Event& event) {
  if (event.kind == EventKind::transferred) {
    const Open& open = open_[event.subject];
    if (open.generation == event.generation && !begin_decoding(event.subject)) homeless_.push_back(event.subject);
    return;
  }
  if (slots_[event.subject].generation != event.generation) return;
  switch (event.kind) {
    case EventKind::at_stage: return reach_stage(event.subject, event.hop);
    case EventKind::computed: return leave_stage(event.subject, event.hop, now_s_);
    default: return take_answer(event.subject);
  }
}

void Simulation::apply(const FaultEdge& edge) {
  int& faults = faults_of_stage_[edge.stage];
  faults += edge.down ? 1 : -1;
  if (timeline_)
    timeline_->marks.push_back({now_s_, fmt::format("{} {}", edge.device, edge.down ? "leaves" : "returns")});
  if (faults != (edge.down ? 1 : 0)) return;
  stages_[edge.stage].free_s = now_s_;
  for (std::size_t route = 0; route < plan_.routes.size(); ++route) {
    const auto on_route = [&](const auto& hops) {
      return std::ranges::any_of(hops, [&](const StageHop& hop) { return faults_of_stage_[hop.stage] > 0; });
    };
    const auto decode = router_.decode_chain(route);
    const bool broken =
        on_route(network_.chains()[route].hops) || (decode && on_route(network_.chains()[*decode].hops));
    router_.mask(route, broken);
    if (broken && edge.down) vacate(route);
  }
  for (std::size_t group = 0; group < router_.groups(); ++group) start_steps(group);
  place_homeless();
}

// Everything on the route is lost, what it has already given out is not.
void Simulation::vacate(std::size_t route) {
  for (std::uint32_t request = 0; request < next_request_; ++request) {
    Open& open = open_[request];
    if (open.place == Open::Place::nowhere || open.route != route) continue;
    if (open.place == Open::Place::in_router) router_.cancel(open.sequence);
    open.place = Open::Place::nowhere;
    ++open.generation;
    // One that has arrived waits among the homeless already.
    if (std::ranges::find(homeless_, request) == homeless_.end()) homeless_.push_back(request);
    ++restarts_;
  }
  std::ranges::sort(homeless_);
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
    if (slots_[slot].used && router_.chains()[slots_[slot].step.chain].route == route)
      router_.complete(release(slot).step.id, {});
}

// ---- requests ----

void Simulation::arrive(std::uint32_t request) {
  if (!place(request)) homeless_.push_back(request);
}

// False: no route can take it now.
bool Simulation::place(std::uint32_t request) {
  RequestRecord& record = records_[request];
  std::vector<BlockKey> keys = shared_keys(record);
  const auto route = router_.choose({.prompt_tokens = record.prompt_tokens + record.emitted, .keys = keys});
  if (!route) return false;
  const std::int64_t room = router_.room(*route, record.prompt_tokens + record.emitted);
  if (room < 1) {
    refuse(request);
    return true;
  }
  record.output_tokens = std::min(record.output_tokens, record.emitted + room);
  const std::int64_t most = router_.decode_chain(*route) ? 1 : record.output_tokens - record.emitted;
  const bool known_before = open_[request].accepted;
  if (enter(request, *route, 0, most, std::move(keys)) == Admission::accepted) return true;
  if (known_before) return false;
  refuse(request);
  return true;
}

void Simulation::refuse(std::uint32_t request) {
  records_[request].refused = true;
  ++settled_;
}

// Requests of a class begin with the same tokens.
std::vector<BlockKey> Simulation::shared_keys(const RequestRecord& record) const {
  const double share = plan_.workload.classes[static_cast<std::size_t>(record.request_class)].cached_share;
  const auto tokens = static_cast<std::int64_t>(share * static_cast<double>(record.prompt_tokens));
  std::vector<BlockKey> keys;
  for (std::int64_t block = 0; block < tokens / plan_.step.block_tokens; ++block)
    keys.push_back({{static_cast<std::uint64_t>(block), static_cast<std::uint64_t>(record.request_class)}});
  return keys;
}

Admission Simulation::enter(std::uint32_t request, std::size_t chain, std::int64_t cached, std::int64_t most,
                            std::vector<BlockKey> keys) {
  const RequestRecord& record = records_[request];
  const std::uint64_t sequence = request_of_sequence_.size();
  const Admission admission = router_.add(sequence, chain, record.prompt_tokens + record.emitted, most, cached,
                                          QueueLimit::applies, std::move(keys));
  MOTLEY_CHECK(admission != Admission::never_fits);
  if (admission != Admission::accepted) return admission;
  request_of_sequence_.push_back(request);
  Open& open = open_[request];
  open.place = Open::Place::in_router;
  open.accepted = true;
  open.sequence = sequence;
  open.route = static_cast<std::uint32_t>(router_.chains()[chain].route);
  start_steps(router_.group_of(chain));
  return admission;
}

// False: the queue where it decodes is full.
bool Simulation::begin_decoding(std::uint32_t request) {
  const RequestRecord& record = records_[request];
  return enter(request, router_.decode_chain(open_[request].route).value(), record.prompt_tokens + record.emitted - 1,
               record.output_tokens - record.emitted) == Admission::accepted;
}

void Simulation::place_homeless() {
  std::vector<std::uint32_t> waiting = std::exchange(homeless_, {});
  for (const std::uint32_t request : waiting) {
    const bool placed = open_[request].place == Open::Place::in_transfer ? begin_decoding(request) : place(request);
    if (!placed) homeless_.push_back(request);
  }
}

// True: it leaves the chain.
bool Simulation::take_token(std::uint32_t request, std::size_t chain) {
  RequestRecord& record = records_[request];
  if (record.emitted++ == 0) record.first_token_s = now_s_;
  record.last_token_s = now_s_;
  if (now_s_ >= options_.measure_from_s && now_s_ < options_.measure_until_s)
    ++tokens_of_class_[static_cast<std::size_t>(record.request_class)];
  if (record.emitted == record.output_tokens) {
    open_[request].place = Open::Place::nowhere;
    ++settled_;
    return true;
  }
  const bool prefills = chain < plan_.routes.size() && router_.decode_chain(chain).has_value();
  if (prefills) hand_over(request, chain);
  return prefills;
}

// All transfers begin when the first token is out; the last to arrive counts.
void Simulation::hand_over(std::uint32_t request, std::size_t chain) {
  const RequestRecord& record = records_[request];
  Open& open = open_[request];
  open.place = Open::Place::in_transfer;
  ++open.generation;
  const auto cached = static_cast<double>(record.prompt_tokens + record.emitted - 1);
  double arrived_s = now_s_;
  for (const Transfer& transfer : network_.chains()[chain].transfers) {
    const double bytes = kv_bytes_of(plan_.model.arch, transfer.layers, transfer.kv_type, cached);
    arrived_s = std::max(arrived_s, send(transfer.way, now_s_, bytes / transfer.way.time.token_bytes, bytes,
                                         {.tokens = cached, .sequences = 1}));
  }
  events_.push(arrived_s, EventKind::transferred, request, open.generation);
}

// ---- steps ----

void Simulation::start_steps(std::size_t group) {
  while (auto step = router_.next(group)) launch(std::move(*step));
  note_queue(group);
}

void Simulation::launch(RoutedStep step) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].load = network_.load_of(step);
  slots_[slot].step = std::move(step);
  slots_[slot].used = true;
  reach_stage(slot, 0);
}

Simulation::StepSlot& Simulation::release(std::uint32_t slot) {
  ++slots_[slot].generation;
  slots_[slot].used = false;
  free_slots_.push_back(slot);
  return slots_[slot];
}

void Simulation::reach_stage(std::uint32_t slot, std::uint32_t hop) {
  const StepSlot& under_way = slots_[slot];
  const StageHop& here = network_.chains()[under_way.step.chain].hops[hop];
  const double seconds = here.time.seconds(under_way.load) * crowding(here.stage);
  const double done_s = occupy(stages_[here.stage], now_s_, seconds, under_way.load.tokens,
                               {.track = here.stage,
                                .step = under_way.step.id,
                                .tokens = under_way.load.tokens,
                                .sequences = static_cast<std::uint32_t>(under_way.step.sequences.size())});
  // Where nothing can come between, the step's way to the next stage is known already.
  if (here.leaves_in_order && options_.faults.empty()) return leave_stage(slot, hop, done_s);
  events_.push(done_s, EventKind::computed, slot, under_way.generation, hop);
}

// How much slower a stage computes for sharing the cores of the host with those that are at work when it starts.
double Simulation::crowding(std::uint32_t stage) const {
  const auto& local = plan_.cluster.description.local;
  if (!local) return 1;
  const double start_s = std::max(now_s_, stages_[stage].free_s);
  int workers = network_.workers(stage);
  for (std::uint32_t other = 0; other < stages_.size(); ++other)
    if (other != stage && stages_[other].free_s > start_s) workers += network_.workers(other);
  return std::max(1.0, static_cast<double>(workers) / static_cast<double>(local->cores));
}

void Simulation::leave_stage(std::uint32_t slot, std::uint32_t hop, double time_s) {
  const StepSlot& under_way = slots_[slot];
  const ChainModel& chain = network_.chains()[under_way.step.chain];
  const StageHop& here = chain.hops[hop];
  if (hop + 1 == chain.hops.size()) {
    const double back_s = chain.back.seconds(static_cast<double>(under_way.step.sequences.size()));
    const double answered_s = in_order(under_way.step.chain, hop + 1, time_s + back_s);
    return events_.push(answered_s, EventKind::answered, slot, under_way.generation);
  }
  const double tokens = under_way.load.tokens;
  const double sent_s = send(here.next, time_s, tokens, tokens * here.next.time.token_bytes,
                             {.step = under_way.step.id,
                              .tokens = tokens,
                              .sequences = static_cast<std::uint32_t>(under_way.step.sequences.size())});
  const double arrival_s = in_order(under_way.step.chain, hop + 1, sent_s);
  events_.push(arrival_s, EventKind::at_stage, slot, under_way.generation, hop + 1);
}

// Messages of a chain do not overtake one another, although a small one may have a shorter way.
double Simulation::in_order(std::size_t chain, std::size_t hop, double arrival_s) {
  double& last_s = last_arrival_s_[chain][hop];
  return last_s = std::max(last_s, arrival_s);
}

void Simulation::take_answer(std::uint32_t slot) {
  const RoutedStep step = std::move(release(slot).step);
  std::set<std::uint64_t> finished;
  for (const ScheduledSequence& part : step.sequences)
    if (part.samples && take_token(request_of_sequence_[part.id], step.chain)) finished.insert(part.id);
  router_.complete(step.id, finished);
  start_steps(router_.group_of(step.chain));
  if (!homeless_.empty()) place_homeless();
}

// Until when the server is busy with what comes at this time.
double Simulation::occupy(Server& server, double from_s, double seconds, double amount, Timeline::Span span) {
  const double start_s = std::max(from_s, server.free_s);
  server.free_s = start_s + seconds;
  server.busy_s += measured_part_s(start_s, server.free_s);
  server.amount += amount;
  ++server.uses;
  if (timeline_) {
    span.start_s = start_s;
    span.duration_s = seconds;
    timeline_->spans.push_back(span);
  }
  return server.free_s;
}

// When it has arrived.
double Simulation::send(const Way& way, double from_s, double tokens, double bytes, Timeline::Span span) {
  span.track = static_cast<std::uint32_t>(stages_.size()) + way.link;
  return occupy(links_[way.link], from_s, way.time.occupancy_s(tokens, bytes), bytes, span) + way.time.latency_s(bytes);
}

// ---- measuring ----

double Simulation::measured_part_s(double from_s, double until_s) const {
  const double end_s = std::min(options_.measure_until_s, options_.stop_s);
  return std::max(0.0, std::min(until_s, end_s) - std::max(from_s, options_.measure_from_s));
}

void Simulation::note_queue(std::size_t group) {
  QueueState& state = queues_[group];
  const double seconds = measured_part_s(state.since_s, now_s_);
  const std::int64_t total = router_.blocks(group);
  state.waiting_s += seconds * static_cast<double>(state.counts.waiting);
  state.blocks_s += seconds * static_cast<double>(total - state.counts.free_blocks);
  state.since_s = now_s_;
  const SchedulerCounts counts = router_.counts(group);
  const std::int64_t blocks = total - counts.free_blocks;
  const bool changed = counts.waiting != state.counts.waiting || counts.running != state.counts.running ||
                       counts.free_blocks != state.counts.free_blocks;
  state.counts = counts;
  state.waiting_peak = std::max(state.waiting_peak, counts.waiting);
  state.blocks_peak = std::max(state.blocks_peak, blocks);
  if (timeline_ && changed)
    timeline_->samples.push_back({static_cast<std::uint32_t>(group), now_s_, counts.waiting, counts.running, blocks});
}

// Where no end is given, from the first arrival to the last event.
double Simulation::measured_time_s() const {
  if (options_.measure_until_s < never_s) return measured_part_s(0, never_s);
  return records_.empty() ? 0 : measured_part_s(records_.front().arrival_s, now_s_);
}

SimResult Simulation::result() {
  SimResult result;
  const double measured_s = measured_time_s();
  const auto share = [&](double seconds) { return measured_s > 0 ? seconds / measured_s : 0; };
  result.measured_s = measured_s;
  result.restarts = restarts_;
  result.events = handled_;
  for (std::size_t i = 0; i < stages_.size(); ++i)
    result.stages.push_back(
        {.stage = plan_.stages[i].id,
         .use = share(stages_[i].busy_s),
         .steps = stages_[i].uses,
         .tokens_per_step = stages_[i].uses > 0 ? stages_[i].amount / static_cast<double>(stages_[i].uses) : 0});
  for (std::size_t i = 0; i < links_.size(); ++i)
    result.links.push_back({.from = network_.links()[i].from,
                            .to = network_.links()[i].to,
                            .use = share(links_[i].busy_s),
                            .bytes = links_[i].amount});
  for (std::size_t group = 0; group < queues_.size(); ++group) {
    note_queue(group);
    const QueueState& state = queues_[group];
    const auto blocks = static_cast<double>(std::max<std::int64_t>(1, router_.blocks(group)));
    QueueUse use{.routes = {},
                 .waiting_mean = share(state.waiting_s),
                 .waiting_peak = state.waiting_peak,
                 .kv_mean = share(state.blocks_s) / blocks,
                 .kv_peak = static_cast<double>(state.blocks_peak) / blocks};
    for (std::size_t chain = 0; chain < router_.chains().size(); ++chain)
      if (router_.group_of(chain) == group) use.routes.push_back(chain_name(plan_, router_, chain));
    if (timeline_) timeline_->queues.push_back(fmt::format("{}", fmt::join(use.routes, ", ")));
    result.queues.push_back(std::move(use));
    result.preemptions += state.counts.preemptions;
  }
  double prompts = 0, found = 0;
  for (const QueueState& state : queues_) {
    prompts += static_cast<double>(state.counts.prompt_tokens);
    found += static_cast<double>(state.counts.found_tokens);
  }
  result.cached_share = prompts > 0 ? found / prompts : 0;
  summarize(plan_.workload, records_, options_, measured_s, tokens_of_class_, result);
  result.records = std::move(records_);
  result.timeline = std::move(timeline_);
  return result;
}

}  // namespace motley::sim

namespace motley {

SimResult simulate(const ServePlan& plan, const std::vector<TraceRequest>& requests, const SimOptions& options) {
  return sim::Simulation(plan, requests, options).run();
}

}  // namespace motley
