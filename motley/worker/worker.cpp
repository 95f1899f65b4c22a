// The worker process. Its main thread listens to the driver; a second one does the job. That may be blocked in a
// collective at any time, so that the process ends by _exit().
#include "motley/worker/worker.hpp"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>
#include <variant>

#include "motley/base/clock.hpp"
#include "motley/worker/job.hpp"
#include "motley/workers/remote_workers.hpp"

namespace motley {
namespace {

// The first that the driver's first message begins.
constexpr const Job* jobs[] = {&train_job, &serve_job};

constexpr std::int32_t max_threads = 1024;

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

void set_threads(std::int32_t threads) {
  if (threads < 1 || threads > max_threads)
    throw Error(ErrorCode::peer, fmt::format("a worker cannot run {} threads", threads));
  at::set_num_threads(threads);
}

FabricOptions fabric_of(const CallDriver& call) {
  FabricOptions options{.listen = call.listen, .key = call.key, .identity = {}};
  if (!call.certificate.empty()) options.identity = TlsIdentity{call.certificate, call.private_key, call.authority};
  return options;
}

}  // namespace

void fail(ControlConnection& driver, const std::exception_ptr& cause) {
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
    driver.send(failure);
  } catch (const Error&) {
    // The driver is gone; the exit code remains.
  }
  ::_exit(failure.code);
}

void serve_driver(ControlConnection& driver, const CallDriver& self, Fabric& fabric) {
  // Threads use what is here: nothing may be unwound.
  WorkQueue queue;
  ActivityLog activity;
  try {
    auto first = driver.receive();
    if (!first) ::_exit(0);
    const Job& job = **std::ranges::find_if(jobs, [&](const Job* asked) { return asked->begins_with(*first); });
    queue.push(*std::move(first));
    show_alive(driver, activity);
    std::thread([&] {
      try {
        set_threads(self.threads);  // of this thread
        job.run({driver, self, fabric, queue, activity});
      } catch (...) {
        fail(driver, std::current_exception());
      }
    }).detach();  // ends with the process
    while (auto message = driver.receive()) {
      if (std::holds_alternative<Stop>(*message)) break;
      queue.push(*std::move(message));
    }
  } catch (...) {
    fail(driver, std::current_exception());
  }
  ::_exit(0);
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
