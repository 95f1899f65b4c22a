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
#include <stop_token>
#include <thread>
#include <variant>

#include "motley/base/clock.hpp"
#include "motley/engine/device_errors.hpp"
#include "motley/engine/stage_executor.hpp"
#include "motley/trainer/step/train_worker.hpp"
#include "motley/worker/worker.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

constexpr std::int32_t max_threads = 1024;

// What the driver wants done, in the order of its arrival.
class WorkQueue {
 public:
  using Work = std::variant<Preload, LaunchedPart, Step, LoadStandby>;

  void push(Preload preload) { push(Work(std::move(preload))); }
  void push(Step step) { push(Work(std::move(step))); }
  void push(LoadStandby asked) { push(Work(asked)); }
  // Whatever came before is given up, but for what is loaded.
  void push(Launch launch) {
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(work_, [](const Work& work) { return !std::holds_alternative<Preload>(work); });
      part_.request_stop();
      part_ = std::stop_source();
    }
    push(Work(LaunchedPart{std::move(launch), part_.get_token()}));
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

void tell(ControlConnection& control, const Message& message) {
  try {
    control.send(message);
  } catch (const Error&) {
    // The main thread sees that the connection has ended.
  }
}

// Once another worker is lost, or memory is short, steps make no sense until the next Launch.
[[noreturn]] void execute_all(ControlConnection& control, Fabric* fabric, WorkQueue& queue, ActivityLog& activity) {
  std::unique_ptr<StageModel> preloaded;
  std::unique_ptr<StageExecutor> executor;
  LoadAhead ahead;
  std::uint64_t epoch = 0;
  ServePlan plan;
  std::string device, backend = "cpu";
  bool interrupted = false;
  const auto run = [&](WorkQueue::Work work) {
    if (const LaunchedPart* part = std::get_if<LaunchedPart>(&work)) {
      epoch = part->launch.epoch;
      plan = read_sent_plan(part->launch.plan_json);
      device = part->launch.device;
      backend = part->launch.backend;
      set_threads(part->launch.threads);
      if (executor) ahead.end_into(*executor->model());
      executor = std::make_unique<StageExecutor>(*part, plan, control, fabric, executor ? executor->model() : preloaded,
                                                 activity);
      interrupted = false;
    } else if (const Preload* asked = std::get_if<Preload>(&work); asked != nullptr && executor) {
      executor->load_ahead(*asked, ahead, [&control] { tell(control, Preloaded{}); });
    } else if (asked != nullptr) {
      set_threads(asked->threads);
      preloaded = preload(*asked, control);
    } else if (const LoadStandby* standby = std::get_if<LoadStandby>(&work)) {
      if (standby->epoch == epoch && !interrupted)
        executor->load_standby(ahead, [&control, epoch](std::int64_t bytes) {
          tell(control, StandbyHeld{epoch, bytes});
        });
    } else if (!interrupted) {
      control.send(executor->execute(std::get<Step>(std::move(work))));
    }
  };
  const auto interrupt = [&](Interrupted why) {
    interrupted = true;
    if (executor && !executor->model()) executor.reset();  // it was taken by the part that could not be made
    activity.set(epoch, 0, Doing::waiting_for_steps);
    control.send(std::move(why));
  };
  for (;;) {
    try {
      try {
        run(queue.pop());
      } catch (const c10::Error& error) {
        // Nothing is taken apart on a device whose context is broken: that would wait, or fail again.
        if (!is_of_memory(error, [&] { return context_lives(at::Device(backend)); }))
          fail(control, std::current_exception());
        fail_without_memory(plan, device, assignment_of(plan, device));
      }
    } catch (const GroupBroken& error) {
      interrupt({epoch, error.what(), places_of(error.suspects, worker_devices(plan))});
    } catch (const MemoryShort& error) {
      interrupt({epoch, error.what(), {}, error.kv_tokens});
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

class MessageQueue {
 public:
  void push(Message message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }
  Message pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !messages_.empty(); });
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> messages_;
};

// As serve_driver(), but that all work is the trainer's.
[[noreturn]] void train_for_driver(ControlConnection& control, Message first, Fabric* fabric, const CallDriver* call) {
  MessageQueue queue;
  ActivityLog activity;
  try {
    if (auto& launch = std::get<TrainLaunch>(first); call != nullptr) {
      launch.model_folder = call->model_folder;
      launch.threads = call->threads;
    }
    const std::int32_t threads = std::get<TrainLaunch>(first).threads;
    queue.push(std::move(first));
    show_alive(control, activity);
    std::thread([&, threads] {
      try {
        set_threads(threads);  // of this thread
        train_steps(
            control, [&] { return queue.pop(); }, fabric, activity);
      } catch (...) {
        fail(control, std::current_exception());
      }
    }).detach();
    while (auto message = control.receive()) {
      if (std::holds_alternative<Stop>(*message)) break;
      queue.push(*std::move(message));
    }
  } catch (...) {
    fail(control, std::current_exception());
  }
  ::_exit(0);
}

// `call` is that of the worker's agent, or null.
[[noreturn]] void serve_driver(ControlConnection& control, Message first, Fabric* fabric, const CallDriver* call) {
  if (std::holds_alternative<TrainLaunch>(first)) train_for_driver(control, std::move(first), fabric, call);
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
    } else if (const auto* standby = std::get_if<LoadStandby>(&message); standby != nullptr && epoch > 0) {
      queue.push(*standby);
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
