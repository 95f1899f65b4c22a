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
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <variant>

#include "motley/base/clock.hpp"
#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/stage/stage_executor.hpp"
#include "motley/trainer/step/train_worker.hpp"
#include "motley/worker/worker.hpp"
#include "motley/workers/launch.hpp"
#include "motley/workers/remote_workers.hpp"

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
[[noreturn]] void execute_all(ControlConnection& control, const CallDriver& self, Fabric& fabric, WorkQueue& queue,
                              ActivityLog& activity) {
  const ComputeDevice& device = open_device(self.backend);
  std::unique_ptr<StageModel> preloaded;
  std::unique_ptr<StageExecutor> executor;
  LoadAhead ahead;
  std::uint64_t epoch = 0;
  ServePlan plan;                    // this worker's part
  std::vector<std::string> devices;  // of all workers
  bool interrupted = false;
  const auto run = [&](WorkQueue::Work work) {
    if (const LaunchedPart* part = std::get_if<LaunchedPart>(&work)) {
      epoch = part->launch.epoch;
      plan = read_sent_plan(part->launch.plan_json);
      devices = part->launch.devices;
      if (executor) ahead.end_into(*executor->model());
      executor = std::make_unique<StageExecutor>(*part, plan, self, device, control, fabric,
                                                 executor ? executor->model() : preloaded, activity);
      interrupted = false;
    } else if (const Preload* asked = std::get_if<Preload>(&work); asked != nullptr && executor) {
      executor->load_ahead(*asked, ahead, [&control] { tell(control, Preloaded{}); });
    } else if (asked != nullptr) {
      preloaded = preload(*asked, self, device, control);
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
        if (!is_of_memory(error, [&] { return device.lives(); })) fail(control, std::current_exception());
        fail_without_memory(plan, self.device, assignment_of(plan, self.device));
      }
    } catch (const GroupBroken& error) {
      interrupt({epoch, error.what(), places_of(error.suspects, devices)});
    } catch (const MemoryShort& error) {
      interrupt({epoch, error.what(), {}, error.kv_tokens});
    }
  }
}

[[noreturn]] void run_executor(ControlConnection& control, const CallDriver& self, Fabric& fabric, WorkQueue& queue,
                               ActivityLog& activity) {
  try {
    const c10::InferenceMode guard;
    set_threads(self.threads);  // of this thread
    execute_all(control, self, fabric, queue, activity);
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

// To the end of the process. Threads use what the caller holds: nothing may be unwound.
[[noreturn]] void listen(ControlConnection& control, const std::function<void(Message)>& take) {
  try {
    while (auto message = control.receive()) {
      if (std::holds_alternative<Stop>(*message)) break;
      take(*std::move(message));
    }
  } catch (...) {
    fail(control, std::current_exception());
  }
  ::_exit(0);
}

const ComputeDevice& training_device(const std::string& backend) {
  const ComputeDevice& device = open_device(backend);
  if (device.has_own_memory()) throw input_error("the trainer runs on processors", "give --backend cpu");
  return device;
}

// All work is the trainer's.
[[noreturn]] void train_for_driver(ControlConnection& control, Message first, const CallDriver& self, Fabric& fabric) {
  MessageQueue queue;
  ActivityLog activity;
  queue.push(std::move(first));
  show_alive(control, activity);
  std::thread([&] {
    try {
      set_threads(self.threads);  // of this thread
      train_steps(
          control, [&] { return queue.pop(); }, self, training_device(self.backend), fabric, activity);
    } catch (...) {
      fail(control, std::current_exception());
    }
  }).detach();  // ends with the process
  listen(control, [&](Message message) { queue.push(std::move(message)); });
}

[[noreturn]] void run_steps_for_driver(ControlConnection& control, const Message& first, const CallDriver& self,
                                       Fabric& fabric) {
  WorkQueue queue;
  ActivityLog activity;
  std::uint64_t epoch = 0;
  const auto take = [&](Message message) {
    if (auto* launch = std::get_if<Launch>(&message)) {
      if (launch->epoch <= epoch)
        throw Error(ErrorCode::peer, fmt::format("a launch of epoch {} after one of epoch {}", launch->epoch, epoch));
      epoch = launch->epoch;
      queue.push(std::move(*launch));
    } else if (auto* preload = std::get_if<Preload>(&message)) {
      queue.push(std::move(*preload));
    } else if (const auto* standby = std::get_if<LoadStandby>(&message); standby != nullptr && epoch > 0) {
      queue.push(*standby);
    } else if (auto* step = std::get_if<Step>(&message); step != nullptr && epoch > 0) {
      queue.push(std::move(*step));
    } else {
      throw Error(ErrorCode::peer, "the driver sent a message that is not for workers, or not now");
    }
  };
  take(first);
  show_alive(control, activity);
  std::thread([&] { run_executor(control, self, fabric, queue, activity); }).detach();  // ends with the process
  listen(control, take);
}

FabricOptions fabric_of(const CallDriver& call) {
  FabricOptions options{.listen = call.listen, .key = call.key, .identity = {}};
  if (!call.certificate.empty()) options.identity = TlsIdentity{call.certificate, call.private_key, call.authority};
  return options;
}

}  // namespace

void serve_driver(ControlConnection& driver, const CallDriver& self, Fabric& fabric) {
  try {
    auto first = driver.receive();
    if (!first) ::_exit(0);
    if (std::holds_alternative<JobMessage>(*first)) train_for_driver(driver, *std::move(first), self, fabric);
    run_steps_for_driver(driver, *first, self, fabric);
  } catch (...) {
    fail(driver, std::current_exception());
  }
}

// Failures before the driver has answered go to the process that has started the worker.
int run_worker(ControlConnection& control) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C reaches the whole process group; the driver decides what it means
  try {
    const auto first = control.receive();
    if (!first) return 0;
    const auto* call = std::get_if<CallDriver>(&*first);
    if (call == nullptr) throw Error(ErrorCode::peer, "the first message does not say what this worker is");
    const FabricOptions options = fabric_of(*call);
    Fabric fabric(options);
    if (call->driver.empty()) {
      control.send(Listening{fabric.address()});
      serve_driver(control, *call, fabric);
    }
    ControlConnection driver(
        call_driver(call->driver, {.device = call->device, .start = call->start, .fabric_address = fabric.address()},
                    {.key = options.key, .identity = options.identity, .encryption = options.encryption},
                    deadline_in(call_timeout_s)));
    serve_driver(driver, *call, fabric);
  } catch (...) {
    fail(control, std::current_exception());
  }
}

}  // namespace motley
