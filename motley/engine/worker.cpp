// The worker process. Its main thread listens to the driver; a second one, the executor, loads the stage and runs the
// steps in the order of their arrival. The executor may be blocked in a collective at any time, so that the process
// ends by _exit().
//
// All workers of a route receive its steps in one order, also where routes share stages: so the worker that is at the
// earliest step of all finds whatever it waits for sent or about to be sent, and there is no deadlock.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/engine/assignment.hpp"
#include "motley/engine/backend.hpp"
#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/stage_model.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr std::int32_t max_threads = 1024;
constexpr const char* crossings_name = "between stages";
constexpr double connect_timeout_s = 30;  // for the other workers to connect, too

class StepQueue {
 public:
  void push(Step step) {
    {
      const std::lock_guard lock(mutex_);
      steps_.push_back(std::move(step));
    }
    arrived_.notify_one();
  }
  Step pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !steps_.empty(); });
    Step step = std::move(steps_.front());
    steps_.pop_front();
    return step;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Step> steps_;
};

// Activations cross in the type that the receiving stage computes in.
at::ScalarType crossing_type(const Stage& receiver) { return scalar_type(dtype_row(receiver.weight_type).computed_in); }

// One device's part of the plan, loaded and connected.
class Executor {
 public:
  // Sends Progress, and Ready at the end.
  Executor(const Launch& launch, ControlConnection& control, Fabric* fabric);
  StepResult execute(const Step& step);

 private:
  void connect(const Launch& launch, const WorkerLinks& links);
  void connect(const Launch& launch, const FabricAddresses& addresses, Fabric& fabric);
  const RoutePlace& place_on_route(const Step& step) const;
  at::Tensor receive(const Stage& previous, std::int64_t tokens);
  void send(const Stage& next, const at::Tensor& hidden);
  void use_logits(const Step& step, const at::Tensor& hidden, StepResult& result);
  double waited_s() const;
  double stage_waited_s() const { return group_ ? group_->waited_s() : 0; }

  ServePlan plan_;
  Assignment assignment_;
  at::Device device_;
  std::map<std::string, int> rank_of_;    // devices in workers_
  std::unique_ptr<WorkerGroup> workers_;  // of the whole plan, for crossings
  std::unique_ptr<WorkerGroup> group_;    // of the stage; null: a single rank
  std::unique_ptr<StageModel> model_;
  at::Tensor incoming_;       // rows for model_, on its device
  at::Tensor incoming_host_;  // where they arrive; the same tensor on a CPU
};

Executor::Executor(const Launch& launch, ControlConnection& control, Fabric* fabric)
    : plan_(read_plan<ServePlan>(parse_json(launch.plan_json, "plan"), "plan")),
      assignment_(assignment_of(plan_, launch.device)),
      device_(open_backend(launch.backend)) {
  const Instant start = Clock::now();
  const std::string kernels(device_.is_cpu() ? cpu_kernels_name() : "aten");  // refused, if so, before any work
  const std::vector<std::string> devices = worker_devices(plan_);
  for (std::size_t rank = 0; rank < devices.size(); ++rank) rank_of_[devices[rank]] = static_cast<int>(rank);
  if (const auto* links = std::get_if<WorkerLinks>(&launch.links))
    connect(launch, *links);
  else if (fabric != nullptr)
    connect(launch, std::get<FabricAddresses>(launch.links), *fabric);
  else
    throw Error(ErrorCode::peer, "the driver sent addresses to a worker without a fabric");
  control.send(Progress{"connect", 1});

  const Stage& stage = *assignment_.stage;
  const StageSpec spec{.arch = plan_.model.arch,
                       .layers = stage.layers,
                       .embedding = stage.embedding,
                       .head = stage.head,
                       .rank = assignment_.rank,
                       .degree = assignment_.degree,
                       .shares = stage.shares,
                       .weight_type = stage.weight_type,
                       .kv_type = stage.kv_type,
                       .kv_tokens = stage.kv_tokens,
                       .limits = plan_.step};
  double reported = 0;
  const auto report = [&](double fraction) {
    if (fraction < reported + 0.05 && fraction < 1) return;
    reported = fraction;
    control.send(Progress{"weights", fraction});
  };
  model_ = std::make_unique<StageModel>(spec, launch.model_folder, group_.get(), device_, report);

  const StageModel::Allocated bytes = model_->allocated();
  check_allocation(launch.device, assignment_.memory, {bytes.weights, bytes.kv, bytes.activations});
  if (!stage.embedding) {
    incoming_ = model_->incoming_buffer();
    MOTLEY_CHECK(incoming_.scalar_type() == crossing_type(stage));
    incoming_host_ = incoming_.is_cpu() ? incoming_ : at::empty_like(incoming_, at::TensorOptions(at::kCPU));
  }
  control.send(Ready{bytes.weights, bytes.kv, bytes.activations, seconds_since(start), kernels});
}

void Executor::connect(const Launch& launch, const WorkerLinks& links) {
  workers_ = std::make_unique<WorkerGroup>(crossings_name, worker_devices(plan_), rank_of_.at(launch.device),
                                           launch.epoch, links.crossings);
  const Stage& stage = *assignment_.stage;
  if (assignment_.degree > 1)
    group_ =
        std::make_unique<WorkerGroup>("stage " + stage.id, stage.devices, assignment_.rank, launch.epoch, links.stage);
}

void Executor::connect(const Launch& launch, const FabricAddresses& addresses, Fabric& fabric) {
  const std::vector<std::string> devices = worker_devices(plan_);
  if (addresses.of_workers.size() != devices.size())
    throw Error(ErrorCode::peer,
                fmt::format("{} addresses for {} workers", addresses.of_workers.size(), devices.size()));
  const auto group = [&](const std::string& name, const std::vector<std::string>& members, int rank) {
    std::vector<WorkerAddress> of_members;
    for (const std::string& device : members)
      of_members.push_back(addresses.of_workers[static_cast<std::size_t>(rank_of_.at(device))]);
    return std::make_unique<WorkerGroup>(name, members, rank, launch.epoch, of_members, fabric, connect_timeout_s);
  };
  workers_ = group(crossings_name, devices, rank_of_.at(launch.device));
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

StepResult Executor::execute(const Step& step) {
  const Instant start = Clock::now();
  const double waited_before_s = waited_s();
  const RoutePlace& place = place_on_route(step);
  const std::int64_t tokens = count_tokens(step, plan_.step.max_tokens);

  const at::Tensor incoming = place.previous != nullptr ? receive(*place.previous, tokens) : at::Tensor();
  // A rank may get its whole input from the others of its stage, and waits there for the stages before.
  const double stage_waited_before_s = stage_waited_s();
  const at::Tensor hidden = model_->forward(step, incoming);
  StepResult result{.step = step.step};
  if (place.next != nullptr) {
    send(*place.next, hidden);
  } else {
    use_logits(step, hidden, result);
  }
  result.wait_s = waited_s() - waited_before_s;
  result.stage_wait_s = stage_waited_s() - stage_waited_before_s;
  result.compute_s = seconds_since(start) - result.wait_s;
  return result;
}

at::Tensor Executor::receive(const Stage& previous, std::int64_t tokens) {
  const int senders = static_cast<int>(previous.devices.size());
  const int sender = crossing_sender(assignment_.rank, senders, assignment_.degree);
  const at::Tensor host = incoming_host_.narrow(0, 0, tokens);
  receive_crossing(*workers_, bytes_of(host), tokens, rank_of_.at(previous.devices[static_cast<std::size_t>(sender)]),
                   group_.get());
  at::Tensor incoming = incoming_.narrow(0, 0, tokens);
  if (!incoming.is_cpu()) incoming.copy_(host);
  return incoming;
}

void Executor::send(const Stage& next, const at::Tensor& hidden) {
  std::vector<int> receivers;
  for (const std::string& device : next.devices) receivers.push_back(rank_of_.at(device));
  const at::Tensor host = hidden.to(at::kCPU, crossing_type(next)).contiguous();  // usually `hidden` itself
  send_crossing(*workers_, bytes_of(host), host.size(0), assignment_.rank, assignment_.degree, receivers);
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

[[noreturn]] void run_executor(const Launch& launch, ControlConnection& control, Fabric* fabric, StepQueue& steps) {
  try {
    if (launch.threads < 1 || launch.threads > max_threads)
      throw Error(ErrorCode::peer, fmt::format("a worker cannot run {} threads", launch.threads));
    at::set_num_threads(launch.threads);
    const c10::InferenceMode guard;
    Executor executor(launch, control, fabric);
    for (;;) control.send(executor.execute(steps.pop()));
  } catch (...) {
    fail(control, std::current_exception());
  }
}

}  // namespace

namespace {

constexpr std::chrono::milliseconds alive_every(500);
constexpr double call_timeout_s = 20;  // for the driver to answer

// The driver tells by this that the process runs, whatever the other threads wait for.
void show_alive(ControlConnection& control) {
  std::thread([&control] {
    try {
      for (;; std::this_thread::sleep_for(alive_every)) control.send(Alive{});
    } catch (const Error&) {
      // The main thread sees that the connection has ended.
    }
  }).detach();
}

[[noreturn]] void serve_driver(ControlConnection& control, const Launch& launch, Fabric* fabric) {
  StepQueue steps;
  show_alive(control);
  std::thread([&] { run_executor(launch, control, fabric, steps); }).detach();  // ends with the process
  try {
    while (auto message = control.receive()) {
      if (std::holds_alternative<Stop>(*message)) break;
      auto* step = std::get_if<Step>(&*message);
      if (step == nullptr) throw Error(ErrorCode::peer, "the driver sent a message that is not for workers");
      steps.push(std::move(*step));
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
        call_driver(call.driver, {.device = call.device, .epoch = call.epoch, .fabric_address = fabric->address()},
                    {.key = options.key, .identity = options.identity, .encryption = options.encryption},
                    deadline_in(call_timeout_s)));
    first = control->receive();
  } catch (...) {
    fail(agent, std::current_exception());
  }
  if (!first) ::_exit(0);
  auto* launch = std::get_if<Launch>(&*first);
  if (launch == nullptr)
    fail(*control, std::make_exception_ptr(Error(ErrorCode::peer, "the driver's first message is not a Launch")));
  launch->model_folder = call.model_folder;
  launch->threads = call.threads;
  serve_driver(*control, *launch, fabric.get());
}

}  // namespace

int run_worker(ControlConnection& control, Fabric* fabric) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the whole process group; the driver decides what it means
  try {
    const auto first = control.receive();
    if (!first) return 0;
    if (const auto* call = std::get_if<CallDriver>(&*first)) serve_called_driver(control, *call);
    const auto* launch = std::get_if<Launch>(&*first);
    if (launch == nullptr) throw Error(ErrorCode::peer, "the driver's first message is not a Launch");
    serve_driver(control, *launch, fabric);
  } catch (...) {
    fail(control, std::current_exception());
  }
}

}  // namespace motley
