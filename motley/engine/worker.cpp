// The worker process. Its main thread listens to the driver; a second one, the executor, loads the stage and runs the
// steps in the order of their arrival. The executor may be blocked in a collective at any time, so that the process
// ends by _exit().
//
// All workers of a route receive its steps in one order, also where routes share stages: so the worker that is at the
// earliest step of all finds whatever it waits for sent or about to be sent, and there is no deadlock.
//
// A later Launch stops what the executor waits for, and makes of its part of the model the next one.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <set>
#include <stop_token>
#include <thread>
#include <variant>

#include "motley/base/clock.hpp"
#include "motley/base/free_memory.hpp"
#include "motley/engine/assignment.hpp"
#include "motley/engine/backend.hpp"
#include "motley/engine/cache_handover.hpp"
#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/crossing.hpp"
#include "motley/engine/load_ahead.hpp"
#include "motley/engine/stage_model.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr std::int32_t max_threads = 1024;
constexpr const char* crossings_name = "between stages";
constexpr double connect_timeout_s = 10;  // for the other workers to connect, too

// A part of a plan to be run, until `stop`.
struct Part {
  Launch launch;
  std::stop_token stop;
};

// What the driver wants done, in the order of its arrival.
class WorkQueue {
 public:
  using Work = std::variant<Preload, Part, Step>;

  void push(Preload preload) { push(Work(std::move(preload))); }
  void push(Step step) { push(Work(std::move(step))); }
  // Whatever came before is given up, but for what is loaded.
  void push(Launch launch) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(work_, [](const Work& work) { return !std::holds_alternative<Preload>(work); });
      part_.request_stop();
      part_ = std::stop_source();
    }
    push(Work(Part{std::move(launch), part_.get_token()}));
  }
  Work pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !work_.empty(); });
    Work work = std::move(work_.front());
    work_.pop_front();
    return work;
  }

 private:
  void push(Work work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    arrived_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Work> work_;
  std::stop_source part_;  // of the newest Launch
};

// What the executor is at, for the driver: a worker that waits tells for whom.
class ActivityLog {
 public:
  void set(std::uint64_t epoch, std::uint64_t step, Doing doing, int peer = -1) {
    const std::lock_guard lock(mutex_);
    activity_ = {.epoch = epoch, .step = step, .doing = doing, .peer = peer};
    since_ = Clock::now();
  }
  Activity get() const {
    const std::lock_guard lock(mutex_);
    Activity activity = activity_;
    activity.for_s = seconds_since(since_);
    return activity;
  }

 private:
  mutable std::mutex mutex_;
  Activity activity_;
  Instant since_ = Clock::now();
};

StageSpec spec_of(const ServePlan& plan, const Assignment& assignment) {
  const Stage& stage = *assignment.stage;
  return {.arch = plan.model.arch,
          .layers = stage.layers,
          .embedding = stage.embedding,
          .head = stage.head,
          .rank = assignment.rank,
          .degree = assignment.degree,
          .shares = stage.shares,
          .weight_type = stage.weight_type,
          .kv_type = stage.kv_type,
          .kv_tokens = stage.kv_tokens,
          .limits = plan.step};
}

std::function<void(double)> weights_progress(ControlConnection& control) {
  return [&control, reported = 0.0](double fraction) mutable {
    if (fraction < reported + 0.05 && fraction < 1) return;
    reported = fraction;
    control.send(Progress{"weights", fraction});
  };
}

ServePlan read_sent_plan(const std::string& json) { return read_plan<ServePlan>(parse_json(json, "plan"), "plan"); }

std::unique_ptr<StageModel> preload(const Preload& asked, ControlConnection& control) {
  const ServePlan plan = read_sent_plan(asked.plan_json);
  const Assignment assignment = assignment_of(plan, asked.device);
  const at::Device device = open_backend(asked.backend);
  if (device.is_cpu()) check_free_memory(asked.device, assignment.memory, free_memory_bytes());
  auto model = StageModel::preload(spec_of(plan, assignment), asked.model_folder, device, weights_progress(control));
  control.send(Preloaded{});
  return model;
}

std::set<std::int64_t> layers_from(const CacheHandover& handover, int rank) {
  std::set<std::int64_t> layers;
  for (const CacheMove& move : handover.moves)
    if (move.from == rank) layers.insert(move.layer);
  return layers;
}

// One device's part of the plan, loaded and connected.
class Executor {
 public:
  // Sends Progress, and Ready at the end. `held` may be null; it is taken, and the new part keeps of it what it can.
  // Where GroupBroken is thrown it is as before, or what was made of it.
  Executor(const Part& part, ServePlan plan, ControlConnection& control, Fabric* fabric,
           std::unique_ptr<StageModel>& held, ActivityLog& activity);
  StepResult execute(Step step);
  std::unique_ptr<StageModel>& model() { return model_; }
  // What a later launch will need is read from now on, if there is room for it; `done` is called in any case.
  void load_ahead(const Preload& asked, LoadAhead& ahead, std::function<void()> done) const;

 private:
  void connect(const Part& part, const WorkerLinks& links);
  void connect(const Part& part, const FabricAddresses& addresses, Fabric& fabric);
  const RoutePlace& place_on_route(const Step& step) const;
  at::Tensor receive(const RoutePlace& place, std::int64_t tokens);
  void send(const RoutePlace& place, const at::Tensor& hidden);
  void use_logits(const Step& step, const at::Tensor& hidden, StepResult& result);
  double waited_s() const;
  double stage_waited_s() const { return group_ ? group_->waited_s() : 0; }

  ActivityLog& activity_;
  const std::uint64_t epoch_;
  std::uint64_t step_ = 0;
  ServePlan plan_;
  Assignment assignment_;
  at::Device device_;
  std::map<std::string, int> rank_of_;    // devices in workers_
  std::unique_ptr<WorkerGroup> workers_;  // of the whole plan, for crossings
  std::unique_ptr<WorkerGroup> group_;    // of the stage; null: a single rank
  std::unique_ptr<StageModel> model_;
  at::Tensor incoming_;       // rows for model_, on its device
  at::Tensor incoming_host_;  // where they arrive; the same tensor on a CPU
  CrossingReceiver receiver_;
  CrossingSender sender_;
};

Executor::Executor(const Part& part, ServePlan plan, ControlConnection& control, Fabric* fabric,
                   std::unique_ptr<StageModel>& held, ActivityLog& activity)
    : activity_(activity),
      epoch_(part.launch.epoch),
      plan_(std::move(plan)),
      assignment_(assignment_of(plan_, part.launch.device)),
      device_(open_backend(part.launch.backend)) {
  const Instant start = Clock::now();
  const Launch& launch = part.launch;
  const std::string kernels(device_.is_cpu() ? cpu_kernels_name() : "aten");  // refused, if so, before any work
  const std::vector<std::string> devices = worker_devices(plan_);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) rank_of_[devices[rank]] = static_cast<int>(rank);
  if (const auto* links = std::get_if<WorkerLinks>(&launch.links))
    connect(part, *links);
  else if (fabric != nullptr)
    connect(part, std::get<FabricAddresses>(launch.links), *fabric);
  else
    throw Error(ErrorCode::peer, "the driver sent addresses to a worker without a fabric");
  control.send(Progress{"connect", 1});

  const Stage& stage = *assignment_.stage;
  if (device_.is_cpu() && !held) check_free_memory(launch.device, assignment_.memory, free_memory_bytes());
  model_ = std::make_unique<StageModel>(spec_of(plan_, assignment_), launch.model_folder, group_.get(), device_,
                                        weights_progress(control), std::move(held), launch.epoch,
                                        layers_from(launch.handover, rank_of_.at(launch.device)));
  try {
    hand_over(launch.handover, rank_of_.at(launch.device), launch.epoch, *workers_, *model_);
  } catch (const GroupBroken&) {
    held = std::move(model_);
    throw;
  }
  model_->let_parting_go();

  const StageModel::Allocated bytes = model_->allocated();
  check_allocation(launch.device, assignment_.memory, {bytes.weights, bytes.kv, bytes.activations});
  if (!stage.embedding) {
    incoming_ = model_->incoming_buffer();
    incoming_host_ = incoming_.is_cpu() ? incoming_ : at::empty_like(incoming_, at::TensorOptions(at::kCPU));
  }
  control.send(Ready{.weight_bytes = bytes.weights,
                     .kv_bytes = bytes.kv,
                     .activation_bytes = bytes.activations,
                     .load_s = seconds_since(start),
                     .kernels = kernels,
                     .epoch = launch.epoch,
                     .loaded_bytes = model_->loaded_bytes(),
                     .cache_epoch = model_->cache_epoch()});
}

void Executor::load_ahead(const Preload& asked, LoadAhead& ahead, std::function<void()> done) const {
  const ServePlan plan = read_sent_plan(asked.plan_json);
  const Assignment next = assignment_of(plan, asked.device);
  const DeviceType& type = plan.cluster.type_of(plan.cluster.find_device(asked.device));
  if (!has_room_beside(assignment_, next, type.memory_bytes)) return done();
  ahead.begin(spec_of(plan, next), asked.model_folder, device_, *model_, std::move(done));
}

void Executor::connect(const Part& part, const WorkerLinks& links) {
  const Launch& launch = part.launch;
  workers_ = std::make_unique<WorkerGroup>(crossings_name, worker_devices(plan_), rank_of_.at(launch.device),
                                           launch.epoch, links.crossings, part.stop);
  const Stage& stage = *assignment_.stage;
  if (assignment_.degree > 1)
    group_ = std::make_unique<WorkerGroup>("stage " + stage.id, stage.devices, assignment_.rank, launch.epoch,
                                           links.stage, part.stop);
}

void Executor::connect(const Part& part, const FabricAddresses& addresses, Fabric& fabric) {
  const std::vector<std::string> devices = worker_devices(plan_);
  if (addresses.of_workers.size() != devices.size())
    throw Error(ErrorCode::peer,
                fmt::format("{} addresses for {} workers", addresses.of_workers.size(), devices.size()));
  const auto group = [&](const std::string& name, const std::vector<std::string>& members, int rank) {
    std::vector<WorkerAddress> of_members;
    for (const std::string& device : members)
      of_members.push_back(addresses.of_workers[static_cast<std::size_t>(rank_of_.at(device))]);
    return std::make_unique<WorkerGroup>(name, members, rank, part.launch.epoch, of_members, fabric, connect_timeout_s,
                                         part.stop);
  };
  workers_ = group(crossings_name, devices, rank_of_.at(part.launch.device));
  const Stage& stage = *assignment_.stage;
  if (assignment_.degree > 1) group_ = group("stage " + stage.id, stage.devices, assignment_.rank);
}

const RoutePlace& Executor::place_on_route(const Step& step) const {
  if (step.route >= assignment_.places.size() || !assignment_.places[step.route])
    throw Error(ErrorCode::peer,
                fmt::format("step {}: route {} does not pass stage {}", step.step, step.route, assignment_.stage->id));
  return *assignment_.places[step.route];
}

// How many rows cross; what else a step says is checked by the model.
std::int64_t count_tokens(const Step& step, std::int64_t max_tokens) {
  std::int64_t tokens = 0;
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.count < 1 || sequence.count > max_tokens - tokens)
      throw Error(ErrorCode::peer, fmt::format("step {}: {} tokens of sequence {} after {} others, at most {} fit",
                                               step.step, sequence.count, sequence.sequence, tokens, max_tokens));
    tokens += sequence.count;
  }
  if (tokens == 0) throw Error(ErrorCode::peer, fmt::format("step {} has no tokens", step.step));
  return tokens;
}

bool passes(const StepSequence& part, std::size_t stage) {
  return part.stages == 0 || (part.stages > 0 && static_cast<std::size_t>(part.stages) > stage);
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

StepResult Executor::execute(Step step) {
  const Instant start = Clock::now();
  const double waited_before_s = waited_s();
  step_ = step.step;
  activity_.set(epoch_, step_, Doing::computing);
  const RoutePlace& place = place_on_route(step);
  const std::int64_t rows_onwards = take_parts(step, place.number);
  const std::int64_t tokens = count_tokens(step, plan_.step.max_tokens);

  const at::Tensor incoming = place.previous != nullptr ? receive(place, tokens) : at::Tensor();
  // A rank may get its whole input from the others of its stage, and waits there for the stages before.
  const double stage_waited_before_s = stage_waited_s();
  const at::Tensor hidden = model_->forward(step, incoming);
  StepResult result{.step = step.step};
  if (place.next == nullptr)
    use_logits(step, hidden, result);
  else if (rows_onwards > 0)
    send(place, hidden.narrow(0, 0, rows_onwards));
  result.wait_s = waited_s() - waited_before_s;
  result.stage_wait_s = stage_waited_s() - stage_waited_before_s;
  result.compute_s = seconds_since(start) - result.wait_s;
  activity_.set(epoch_, step_, Doing::waiting_for_steps);
  return result;
}

at::Tensor Executor::receive(const RoutePlace& place, std::int64_t tokens) {
  const std::vector<std::string>& previous = place.previous->devices;
  const int senders = static_cast<int>(previous.size());
  const int sender = crossing_sender(assignment_.rank, senders, assignment_.degree);
  const at::Tensor host = incoming_host_.narrow(0, 0, tokens);
  const int from = rank_of_.at(previous[static_cast<std::size_t>(sender)]);
  activity_.set(epoch_, step_, Doing::receiving, from);
  receiver_.receive(*workers_, host, place.received_in, from, group_.get(), [&] {
    if (group_) activity_.set(epoch_, step_, Doing::meeting, rank_of_.at(assignment_.stage->devices[0]));
  });
  activity_.set(epoch_, step_, Doing::computing);
  at::Tensor incoming = incoming_.narrow(0, 0, tokens);
  if (!incoming.is_cpu()) incoming.copy_(host);
  return incoming;
}

void Executor::send(const RoutePlace& place, const at::Tensor& hidden) {
  std::vector<int> receivers;
  for (const std::string& device : place.next->devices) receivers.push_back(rank_of_.at(device));
  activity_.set(epoch_, step_, Doing::sending, receivers.front());
  sender_.send(*workers_, hidden, place.sent_in, assignment_.rank, assignment_.degree, receivers);
  activity_.set(epoch_, step_, Doing::computing);
}

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

// In groups, since the buffer of logits has no more rows than a step has sequences.
void Executor::use_logits(const Step& step, const at::Tensor& hidden, StepResult& result) {
  const std::vector<LogitsRow> all = logits_rows(step);
  std::vector<std::int64_t> numbers;
  for (const LogitsRow& row : all) numbers.push_back(row.row);
  const auto most = static_cast<std::size_t>(plan_.step.max_sequences);
  for (std::size_t first = 0; first < all.size(); first += most) {
    const std::size_t count = std::min(most, all.size() - first);
    const at::Tensor logits = model_->logits(hidden, std::span(numbers).subspan(first, count));
    if (assignment_.rank != 0) continue;
    const at::Tensor host = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto columns = static_cast<std::size_t>(host.size(1));
    for (std::size_t i = 0; i < count; ++i)
      take_row(all[first + i], {host.const_data_ptr<float>() + i * columns, columns}, result);
  }
}

double Executor::waited_s() const { return workers_->waited_s() + stage_waited_s(); }

// ---- the process ----

// Tells the driver why, as far as it still listens.
[[noreturn]] void fail(ControlConnection& control, const std::exception_ptr& cause) {
  Failure failure;
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    failure = {static_cast<std::int32_t>(error.code()), error.what(), error.hint()};
  } catch (const c10::Error& error) {
    failure.message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure.message = error.what();
  } catch (...) {
    failure.message = "an unknown exception";
  }
  try {
    control.send(failure);
  } catch (const Error&) {
    // The driver is gone; the exit code remains.
  }
  ::_exit(failure.code);
}

void set_threads(std::int32_t threads) {
  if (threads < 1 || threads > max_threads)
    throw Error(ErrorCode::peer, fmt::format("a worker cannot run {} threads", threads));
  at::set_num_threads(threads);
}

std::vector<std::int32_t> places_of(const std::vector<std::string>& of, const std::vector<std::string>& devices) {
  std::vector<std::int32_t> places;
  for (const std::string& device : of)
    places.push_back(static_cast<std::int32_t>(std::ranges::find(devices, device) - devices.begin()));
  return places;
}

void tell_preloaded(ControlConnection& control) {
  try {
    control.send(Preloaded{});
  } catch (const Error&) {
    // The main thread sees that the connection has ended.
  }
}

// Once another worker is lost, steps make no sense until the next Launch.
[[noreturn]] void execute_all(ControlConnection& control, Fabric* fabric, WorkQueue& queue, ActivityLog& activity) {
  std::unique_ptr<StageModel> preloaded;
  std::unique_ptr<Executor> executor;
  LoadAhead ahead;
  std::uint64_t epoch = 0;
  std::vector<std::string> devices;  // of all workers
  bool interrupted = false;
  for (;;) {
    WorkQueue::Work work = queue.pop();
    try {
      if (const Part* part = std::get_if<Part>(&work)) {
        epoch = part->launch.epoch;
        ServePlan plan = read_sent_plan(part->launch.plan_json);
        devices = worker_devices(plan);
        set_threads(part->launch.threads);
        if (executor) ahead.end_into(*executor->model());
        executor = std::make_unique<Executor>(*part, std::move(plan), control, fabric,
                                              executor ? executor->model() : preloaded, activity);
        interrupted = false;
      } else if (const Preload* asked = std::get_if<Preload>(&work); asked != nullptr && executor) {
        executor->load_ahead(*asked, ahead, [&control] { tell_preloaded(control); });
      } else if (asked != nullptr) {
        set_threads(asked->threads);
        preloaded = preload(*asked, control);
      } else if (!interrupted) {
        control.send(executor->execute(std::get<Step>(std::move(work))));
      }
    } catch (const GroupBroken& error) {
      interrupted = true;
      activity.set(epoch, 0, Doing::waiting_for_steps);
      control.send(Interrupted{epoch, error.what(), places_of(error.suspects, devices)});
    }
  }
}

[[noreturn]] void run_executor(ControlConnection& control, Fabric* fabric, WorkQueue& queue, ActivityLog& activity) {
  try {
    const c10::InferenceMode guard;
    execute_all(control, fabric, queue, activity);
  } catch (...) {
    fail(control, std::current_exception());
  }
}

}  // namespace

namespace {

constexpr std::chrono::milliseconds alive_every(500);
constexpr double call_timeout_s = 20;  // for the driver to answer

// The driver tells by this that the process runs, whatever the other threads wait for.
void show_alive(ControlConnection& control, const ActivityLog& activity) {
  std::thread([&] {
    try {
      for (;; std::this_thread::sleep_for(alive_every)) control.send(Alive{activity.get()});
    } catch (const Error&) {
      // The main thread sees that the connection has ended.
    }
  }).detach();
}

// `call` is that of the worker's agent, or null.
[[noreturn]] void serve_driver(ControlConnection& control, Message first, Fabric* fabric, const CallDriver* call) {
  WorkQueue queue;
  ActivityLog activity;
  std::uint64_t epoch = 0;
  const auto as_called = [&](auto& part) {
    if (call == nullptr) return;
    part.model_folder = call->model_folder;
    part.threads = call->threads;
  };
  const auto take = [&](Message& message) {
    if (auto* launch = std::get_if<Launch>(&message)) {
      if (launch->epoch <= epoch)
        throw Error(ErrorCode::peer, fmt::format("a launch of epoch {} after one of epoch {}", launch->epoch, epoch));
      epoch = launch->epoch;
      as_called(*launch);
      queue.push(std::move(*launch));
    } else if (auto* preload = std::get_if<Preload>(&message)) {
      as_called(*preload);
      queue.push(std::move(*preload));
    } else if (auto* step = std::get_if<Step>(&message); step != nullptr && epoch > 0) {
      queue.push(std::move(*step));
    } else {
      throw Error(ErrorCode::peer, "the driver sent a message that is not for workers, or not now");
    }
  };
  try {
    take(first);
    show_alive(control, activity);
    std::thread([&] { run_executor(control, fabric, queue, activity); }).detach();  // ends with the process
    while (auto message = control.receive()) {
      if (std::holds_alternative<Stop>(*message)) break;
      take(*message);
    }
  } catch (...) {
    fail(control, std::current_exception());
  }
  ::_exit(0);
}

// Of what Launch calls "addresses": this worker's own, for the others.
FabricOptions fabric_of(const CallDriver& call) {
  FabricOptions options{.listen = call.listen, .key = call.key, .identity = {}};
  if (!call.certificate.empty()) options.identity = TlsIdentity{call.certificate, call.private_key, call.authority};
  return options;
}

// Failures before the driver has answered go to the agent.
[[noreturn]] void serve_called_driver(ControlConnection& agent, const CallDriver& call) {
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<ControlConnection> control;
  std::optional<Message> first;
  try {
    const FabricOptions options = fabric_of(call);
    fabric = std::make_unique<Fabric>(options);
    control = std::make_unique<ControlConnection>(
        call_driver(call.driver, {.device = call.device, .start = call.start, .fabric_address = fabric->address()},
                    {.key = options.key, .identity = options.identity, .encryption = options.encryption},
                    deadline_in(call_timeout_s)));
    first = control->receive();
  } catch (...) {
    fail(agent, std::current_exception());
  }
  if (!first) ::_exit(0);
  serve_driver(*control, *std::move(first), fabric.get(), &call);
}

}  // namespace

int run_worker(ControlConnection& control, Fabric* fabric) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the whole process group; the driver decides what it means
  try {
    auto first = control.receive();
    if (!first) return 0;
    if (const auto* call = std::get_if<CallDriver>(&*first)) serve_called_driver(control, *call);
    serve_driver(control, *std::move(first), fabric, nullptr);
  } catch (...) {
    fail(control, std::current_exception());
  }
}

}  // namespace motley
