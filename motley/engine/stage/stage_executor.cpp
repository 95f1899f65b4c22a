#include "motley/engine/stage/stage_executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/base/random.hpp"
#include "motley/base/rounding.hpp"
#include "motley/base/units.hpp"
#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/device/peer_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/stage/cache_handover.hpp"
#include "motley/engine/stage/sampler.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

constexpr const char* workers_name = "workers";
constexpr double connect_timeout_s = 10;  // for the other workers to connect, too

StageSpec spec_of(const ServePlan& plan, const Assignment& assignment) {
  const Stage& stage = *assignment.stage;
  StageSpec spec{.arch = plan.model.arch,
                 .layers = stage.layers,
                 .embedding = stage.embedding,
                 .head = stage.head,
                 .rank = assignment.rank,
                 .degree = assignment.degree,
                 .shares = stage.shares,
                 .expert_shares = stage.expert_shares,
                 .weight_type = stage.weight_type,
                 .kv_type = stage.kv_type,
                 .kv_tokens = stage.kv_tokens,
                 .kv_sequences = stage.kv_sequences,
                 .limits = plan.step};
  for (const StandbyWeights& standby : stage.standby_weights)
    (standby.tier == StandbyTier::host ? spec.host_standby : spec.standby).push_back(standby.layers);
  if (stage.offload) spec.offload = place_layers(*stage.offload, stage.layers.size());
  return spec;
}

// Others may use the memory, too.
void check_memory(const ServePlan& plan, const std::string& device, const Assignment& assignment,
                  const ComputeDevice& on) {
  const std::int64_t of_host = free_memory_bytes();
  if (!on.has_own_memory()) return check_free_memory(plan, device, assignment, of_host);
  if (assignment.host_bytes > of_host)
    throw Error(
        ErrorCode::environment,
        fmt::format("{} takes {} of its host's memory, which has {} left", device,
                    human_bytes(static_cast<double>(assignment.host_bytes)), human_bytes(static_cast<double>(of_host))),
        "end what uses the memory, or plan with less `host_memory` in the cluster file");
  Assignment on_device = assignment;
  on_device.host_bytes = 0;
  if (!on.free_bytes()) return;
  check_free_memory(plan, device, on_device,
                    settled_free_bytes(needed_bytes(on_device), [&] { return on.free_bytes().value_or(0); }));
}

std::set<std::int64_t> layers_from(const CacheHandover& handover, int rank) {
  std::set<std::int64_t> layers;
  for (const CacheMove& move : handover.moves)
    if (move.from == rank) layers.insert(move.layer);
  return layers;
}

}  // namespace

std::function<void(double)> weights_progress(ControlConnection& control) {
  return [&control, reported = 0.0](double fraction) mutable {
    if (fraction < reported + 0.05 && fraction < 1) return;
    reported = fraction;
    control.send(Progress{"weights", fraction});
  };
}

ServePlan read_sent_plan(const std::string& json) { return read_plan<ServePlan>(parse_json(json, "plan"), "plan"); }

std::unique_ptr<StageModel> preload(const Preload& asked, const CallDriver& self, const ComputeDevice& device,
                                    ControlConnection& control) {
  const ServePlan plan = read_sent_plan(asked.plan_json);
  const Assignment assignment = assignment_of(plan, self.device);
  try {
    check_memory(plan, self.device, assignment, device);
  } catch (const MemoryShort&) {
    // The weights fit; the Launch that follows is answered by what is left for keys and values.
  }
  auto model = StageModel::preload(spec_of(plan, assignment), self.model_folder, device, weights_progress(control));
  control.send(Preloaded{});
  return model;
}

StageExecutor::StageExecutor(const LaunchedPart& part, ServePlan plan, const CallDriver& self,
                             const ComputeDevice& device, ControlConnection& control, Fabric& fabric,
                             std::unique_ptr<StageModel>& held, ActivityLog& activity)
    : self_(self),
      activity_(activity),
      epoch_(part.launch.epoch),
      with_launch_(part.stop, [this] { ended_.request_stop(); }),
      plan_(std::move(plan)),
      assignment_(assignment_of(plan_, self.device)),
      device_(device),
      tables_(ceil_div(assignment_.stage->kv_tokens, plan_.step.block_tokens)) {
  const Instant start = Clock::now();
  const Launch& launch = part.launch;
  const std::string kernels = device_.kernels();  // refused, if so, before any work
  connect(launch, fabric);
  meet_peers();
  if (group_) sums_ = RankSums::meet(*group_, device_, largest_rows_bytes(), best_sum_way(), ended_.get_token());
  connect_rows(launch, fabric);
  control.send(Progress{"connect", 1});

  const Stage& stage = *assignment_.stage;
  if (!held) check_memory(plan_, self.device, assignment_, device_);
  model_ = std::make_unique<StageModel>(spec_of(plan_, assignment_), self.model_folder, group_.get(), device_,
                                        weights_progress(control), std::move(held), launch.epoch,
                                        layers_from(launch.handover, rank_of_.at(self.device)), sums_.get());
  try {
    hand_over(launch.handover, rank_of_.at(self.device), launch.epoch, *workers_, *model_, device_);
  } catch (const GroupBroken&) {
    held = std::move(model_);
    throw;
  }
  model_->let_parting_go();

  const StageModel::Allocated bytes = model_->allocated();
  check_allocation(self.device, assignment_.memory, {bytes.weights, bytes.kv, bytes.activations});
  sender_ = std::make_unique<CrossingSender>(device_);
  if (!stage.embedding)
    receiver_ = std::make_unique<CrossingReceiver>(device_, model_->incoming_buffer(), group_.get());
  control.send(Ready{.weight_bytes = bytes.weights,
                     .kv_bytes = bytes.kv,
                     .activation_bytes = bytes.activations,
                     .load_s = seconds_since(start),
                     .kernels = kernels,
                     .epoch = launch.epoch,
                     .loaded_bytes = model_->loaded_bytes(),
                     .peer_links = static_cast<std::int32_t>(to_peers_.size() + from_peers_.size()),
                     .cache_epoch = model_->cache_epoch()});
}

void StageExecutor::load_ahead(const Preload& asked, LoadAhead& ahead, std::function<void()> done) const {
  const ServePlan plan = read_sent_plan(asked.plan_json);
  const Assignment next = assignment_of(plan, self_.device);
  const DeviceType& type = plan.cluster.type_of(plan.cluster.find_device(self_.device));
  if (!has_room_beside(assignment_, next, type.memory_bytes)) return done();
  ahead.begin(spec_of(plan, next), self_.model_folder, device_, *model_, std::move(done));
}

void StageExecutor::load_standby(LoadAhead& ahead, std::function<void(std::int64_t bytes)> done) const {
  ahead.begin_standby(spec_of(plan_, assignment_), self_.model_folder, device_, *model_, std::move(done));
}

std::unique_ptr<StageModel>& StageExecutor::retire() {
  ended_.request_stop();
  sender_.reset();
  receiver_.reset();
  return model_;
}

std::unique_ptr<WorkerGroup> StageExecutor::group_of(const Launch& launch, Fabric& fabric, const std::string& name,
                                                     const std::vector<std::string>& members,
                                                     std::int64_t window_bytes) const {
  std::vector<WorkerAddress> addresses;
  for (const std::string& device : members)
    addresses.push_back(launch.workers[static_cast<std::size_t>(rank_of_.at(device))]);
  const auto rank = static_cast<int>(std::ranges::find(members, self_.device) - members.begin());
  return std::make_unique<WorkerGroup>(name, members, rank, epoch_, addresses, fabric, connect_timeout_s,
                                       ended_.get_token(), window_bytes);
}

void StageExecutor::connect(const Launch& launch, Fabric& fabric) {
  const std::vector<std::string>& devices = launch.devices;
  if (launch.workers.size() != devices.size())
    throw Error(ErrorCode::peer, fmt::format("{} addresses for {} workers", launch.workers.size(), devices.size()));
  for (std::size_t rank = 0; rank < devices.size(); ++rank) rank_of_[devices[rank]] = static_cast<int>(rank);
  for (const std::string& device : worker_devices(plan_))
    if (!rank_of_.contains(device)) throw Error(ErrorCode::peer, fmt::format("no address for {}", device));
  workers_ = group_of(launch, fabric, workers_name, devices, 0);
  const Stage& stage = *assignment_.stage;
  if (assignment_.degree > 1) group_ = group_of(launch, fabric, "stage " + stage.id, stage.devices, 0);
}

// In the same order at all workers, so that none waits for one that waits for another. Rows that pass from GPU to GPU
// need no group.
void StageExecutor::connect_rows(const Launch& launch, Fabric& fabric) {
  std::set<std::pair<int, int>> pairs;
  for (const Route& route : plan_.routes)
    for (std::size_t hop = 0; hop + 1 < route.path.size(); ++hop) {
      // A worker knows its stage and those next to it.
      if (route.path[hop].stage != assignment_.stage->id && route.path[hop + 1].stage != assignment_.stage->id)
        continue;
      const std::vector<std::string>&from = plan_.stage(route.path[hop].stage).devices,
            &to = plan_.stage(route.path[hop + 1].stage).devices;
      const int senders = static_cast<int>(from.size()), receivers = static_cast<int>(to.size());
      for (int j = 0; j < receivers; ++j)
        pairs.emplace(rank_of_.at(from[static_cast<std::size_t>(crossing_sender(j, senders, receivers))]),
                      rank_of_.at(to[static_cast<std::size_t>(j)]));
    }
  for (const auto& pair : pairs) {
    const auto& [from, to] = pair;
    if ((from != workers_->rank() && to != workers_->rank()) || to_peers_.contains(to) || from_peers_.contains(from))
      continue;
    const std::string &sender = launch.devices[static_cast<std::size_t>(from)],
                      &receiver = launch.devices[static_cast<std::size_t>(to)];
    rows_[pair] = group_of(launch, fabric, fmt::format("rows from {} to {}", sender, receiver), {sender, receiver},
                           2 * largest_frame_bytes(plan_));
  }
}

// Pairs of ranks in workers_, sender and receiver, whose rows may pass from GPU to GPU of one machine: the receiver
// gets all of them, in the type that it computes in, and sends none back on another route. This worker is one of the
// two, and the other finds the same.
std::set<std::pair<int, int>> StageExecutor::crossings_of_peers() const {
  const auto machine = [](const std::string& device) { return device.substr(0, device.rfind('/')); };
  std::set<std::pair<int, int>> all, unfit;
  for (const Route& route : plan_.routes)
    for (std::size_t hop = 0; hop + 1 < route.path.size(); ++hop) {
      if (route.path[hop].stage != assignment_.stage->id && route.path[hop + 1].stage != assignment_.stage->id)
        continue;
      const Stage &from = plan_.stage(route.path[hop].stage), &to = plan_.stage(route.path[hop + 1].stage);
      const std::pair<int, int> pair{rank_of_.at(from.devices.front()), rank_of_.at(to.devices.front())};
      all.insert(pair);
      const DType computed_in = dtype_row(to.weight_type).computed_in;
      if (to.devices.size() > 1 || machine(from.devices.front()) != machine(to.devices.front()) ||
          route.path[hop].activation_type.value_or(computed_in) != computed_in)
        unfit.insert(pair);
    }
  std::set<std::pair<int, int>> fitting;
  for (const auto& [from, to] : all)
    if (!unfit.contains({from, to}) && !all.contains({to, from})) fitting.insert({from, to});
  return fitting;
}

void StageExecutor::meet_peers() {
  const PeerMemory* memory = device_.peer_memory();
  const std::set<std::pair<int, int>> pairs = pairs_that_can(*workers_, crossings_of_peers(), memory != nullptr);
  const std::int64_t most_bytes = largest_rows_bytes();
  for (const auto& [from, to] : pairs)
    if (from == workers_->rank()) to_peers_[to] = std::make_unique<PeerSender>(*workers_, to, *memory, most_bytes);
  for (const auto& [from, to] : pairs)
    if (to == workers_->rank())
      from_peers_[from] = std::make_unique<PeerReceiver>(*workers_, from, *memory, most_bytes);
  std::erase_if(to_peers_, [&](const auto& sender) { return !sender.second->agrees(*workers_); });
  std::erase_if(from_peers_, [](const auto& receiver) { return !receiver.second->agrees(); });
}

const RoutePlace& StageExecutor::place_on_route(const Step& step) const {
  if (step.route >= assignment_.places.size() || !assignment_.places[step.route])
    throw Error(ErrorCode::peer,
                fmt::format("step {}: route {} does not pass stage {}", step.step, step.route, assignment_.stage->id));
  return *assignment_.places[step.route];
}

namespace {

// How many rows come to the `number`-th stage of the route; what else a step says is checked by the model.
std::int64_t count_tokens(const Step& step, std::size_t number, std::int64_t max_tokens) {
  std::int64_t tokens = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (!passes(sequence, number)) continue;
    if (sequence.count < 1 || sequence.count > max_tokens - tokens)
      throw Error(ErrorCode::peer, fmt::format("step {}: {} tokens of sequence {} after {} others, at most {} fit",
                                               step.step, sequence.count, sequence.sequence, tokens, max_tokens));
    tokens += sequence.count;
  }
  if (tokens == 0) throw Error(ErrorCode::peer, fmt::format("step {} has no tokens", step.step));
  return tokens;
}

// Leaves those parts of a step that come to the `number`-th stage of the route; says how many rows go on from there.
std::int64_t take_parts(Step& step, std::size_t number) {
  std::erase_if(step.sequences, [&](const StepSequence& part) { return !passes(part, number); });
  const auto goes_on = [&](const StepSequence& part) { return passes(part, number + 1); };
  if (!std::ranges::is_partitioned(step.sequences, goes_on))
    throw Error(ErrorCode::peer, fmt::format("step {}: parts that go further do not come first", step.step));
  std::int64_t rows = 0;
  for (const StepSequence& part : step.sequences) rows += goes_on(part) ? part.count : 0;
  return rows;
}

}  // namespace

// What is wrong with a step is said when it is executed.
void StageExecutor::expect(const Step& step) {
  ArrivingRows rows{.step = step.step};
  try {
    const RoutePlace& place = place_on_route(step);
    if (!receives(place)) return;
    rows.rows = count_tokens(step, place.number, most_tokens());
    rows.type = place.received_in;
    const int from = sender_of(place);
    if (!from_peers_.contains(from)) rows.from = rows_.at({from, workers_->rank()}).get();
  } catch (const Error&) {
    return;
  }
  receiver_->expect(rows);
}

StepResult StageExecutor::execute(Step step) {
  const Instant start = Clock::now();
  const double waited_before_s = waited_s();
  step_ = step.step;
  activity_.set(epoch_, step_, Doing::computing);
  const RoutePlace& place = place_on_route(step);
  const std::int64_t rows_onwards = take_parts(step, place.number);
  count_tokens(step, place.number, most_tokens());

  tables_.complete(step);
  const at::Tensor incoming = receives(place) ? receive(place) : at::Tensor();
  // A rank may get its whole input from the others of its stage, and waits there for the stages before.
  const double stage_waited_before_s = stage_waited_s();
  const at::Tensor hidden = model_->forward(step, incoming, ended_.get_token());
  const StreamMoment computed = moment_on(device_);
  if (receives(place)) receiver_->release();
  StepResult result{.step = step.step};
  result.experts = model_->experts_taken();
  if (place.next == nullptr)
    use_logits(step, hidden, result);
  else if (rows_onwards > 0)
    send(place, hidden.narrow(0, 0, rows_onwards));
  if (computed) computed->synchronize();  // the copies of what is sent go on
  if (sums_) sums_->check();
  result.wait_s = waited_s() - waited_before_s;
  result.stage_wait_s = stage_waited_s() - stage_waited_before_s;
  result.compute_s = seconds_since(start) - result.wait_s;
  activity_.set(epoch_, step_, Doing::waiting_for_steps);
  return result;
}

// Its rank in workers_.
int StageExecutor::sender_of(const RoutePlace& place) const {
  const std::vector<std::string>& previous = place.previous->devices;
  const int sender = crossing_sender(assignment_.rank, static_cast<int>(previous.size()), assignment_.degree);
  return rank_of_.at(previous[static_cast<std::size_t>(sender)]);
}

at::Tensor StageExecutor::receive(const RoutePlace& place) {
  const int from = sender_of(place);
  activity_.set(epoch_, step_, Doing::receiving, from);
  const at::Tensor rows = receiver_->take(
      step_, [&] { activity_.set(epoch_, step_, Doing::meeting, rank_of_.at(assignment_.stage->devices[0])); });
  if (const auto peer = from_peers_.find(from); peer != from_peers_.end()) peer->second->receive(*workers_, rows);
  activity_.set(epoch_, step_, Doing::computing);
  return rows;
}

void StageExecutor::send(const RoutePlace& place, const at::Tensor& hidden) {
  const std::vector<std::string>& next = place.next->devices;
  activity_.set(epoch_, step_, Doing::sending, rank_of_.at(next.front()));
  if (const auto peer = to_peers_.find(rank_of_.at(next.front())); peer != to_peers_.end()) {
    peer->second->send(*workers_, hidden.to(scalar_type(place.sent_in)).contiguous());
  } else {
    std::vector<WorkerGroup*> receivers;
    for (const std::string& device : next) {
      const auto mine = rows_.find({workers_->rank(), rank_of_.at(device)});
      receivers.push_back(mine != rows_.end() ? mine->second.get() : nullptr);
    }
    sender_->post(hidden, place.sent_in, receivers);
  }
  activity_.set(epoch_, step_, Doing::computing);
}

namespace {

// The logits of one row of `hidden`: a token is chosen by them, or known ones are scored.
struct LogitsRow {
  std::int64_t row = 0;
  const StepSequence* sequence = nullptr;
  std::optional<std::size_t> target = {};
};

std::vector<LogitsRow> logits_rows(const Step& step) {
  std::vector<LogitsRow> rows;
  std::int64_t first = 0;
  for (const StepSequence& sequence : step.sequences) {
    const std::size_t targets = sequence.scoring ? sequence.scoring->targets.size() : 0;
    for (std::size_t i = 0; i < targets; ++i) rows.push_back({first + static_cast<std::int64_t>(i), &sequence, i});
    first += sequence.count;
    if (sequence.sampling) rows.push_back({first - 1, &sequence});
  }
  return rows;
}

void take_row(const LogitsRow& row, std::span<const float> logits, StepResult& result) {
  const StepSequence& sequence = *row.sequence;
  if (!row.target) {
    result.tokens.push_back(sample(logits, *sequence.sampling, sequence.sequence, sequence.position + sequence.count));
    return;
  }
  if (*row.target == 0) result.scores.push_back({sequence.sequence, {}});
  result.scores.back().scores.push_back(score(logits, sequence.scoring->targets[*row.target], sequence.scoring->top));
}

// How a row's token is drawn, if nothing but the logits themselves comes in.
std::optional<PlainDraw> plain_draw(const LogitsRow& row) {
  if (row.target) return std::nullopt;
  const Sampling& sampling = *row.sequence->sampling;
  if (sampling.logprobs >= 0 || !sampling.logit_bias.empty() || !sampling.forbidden.empty() ||
      sampling.presence_penalty != 0 || sampling.frequency_penalty != 0 || sampling.top_k > 0 || sampling.top_p < 1)
    return std::nullopt;
  const std::int64_t position = row.sequence->position + row.sequence->count;
  return PlainDraw{.temperature = sampling.temperature,
                   .min_p = sampling.min_p,
                   .uniform = uniform_at(sampling.seed, static_cast<std::uint64_t>(position))};
}

// The tokens of all rows, where the device draws them: their logits then never leave it.
std::optional<std::vector<std::int32_t>> drawn_on_device(const StageModel& model, const at::Tensor& logits,
                                                         std::span<const LogitsRow> rows) {
  std::vector<PlainDraw> draws;
  for (const LogitsRow& row : rows)
    if (const auto draw = plain_draw(row)) draws.push_back(*draw);
  if (draws.size() != rows.size()) return std::nullopt;
  auto tokens = model.draw(logits, draws);
  if (tokens && std::ranges::find(*tokens, -1) != tokens->end()) return std::nullopt;  // sample() says what is wrong
  return tokens;
}

}  // namespace

// In groups, since the buffer of logits has no more rows than a step has sequences.
void StageExecutor::use_logits(const Step& step, const at::Tensor& hidden, StepResult& result) {
  const std::vector<LogitsRow> all = logits_rows(step);
  std::vector<std::int64_t> numbers;
  for (const LogitsRow& row : all) numbers.push_back(row.row);
  const auto most = static_cast<std::size_t>(plan_.step.max_sequences);
  for (std::size_t first = 0; first < all.size(); first += most) {
    const auto group = std::span(all).subspan(first, std::min(most, all.size() - first));
    const at::Tensor logits = model_->logits(hidden, std::span(numbers).subspan(first, group.size()));
    if (assignment_.rank != 0) continue;
    if (const auto tokens = drawn_on_device(*model_, logits, group)) {
      for (std::size_t i = 0; i < group.size(); ++i)
        result.tokens.push_back({.sequence = group[i].sequence->sequence, .token = (*tokens)[i]});
      continue;
    }
    const at::Tensor host = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto columns = static_cast<std::size_t>(host.size(1));
    for (std::size_t i = 0; i < group.size(); ++i)
      take_row(group[i], {host.const_data_ptr<float>() + i * columns, columns}, result);
  }
}

double StageExecutor::waited_s() const {
  return workers_->waited_s() + stage_waited_s() + sender_->waited_s() + (receiver_ ? receiver_->waited_s() : 0);
}

}  // namespace motley
