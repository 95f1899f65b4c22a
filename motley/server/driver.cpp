#include "motley/server/driver.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/plan/served.hpp"
#include "motley/server/dispatcher.hpp"
#include "motley/workers/worker_processes.hpp"

namespace motley {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double worker_grace_s = 1;  // to leave by itself once its connection has ended
constexpr double settle_s = 0.25;     // in which the cause of a failure is told from its consequences

ErrorCode code_from(std::int32_t number) {
  for (const ErrorCode code : {ErrorCode::negative, ErrorCode::input, ErrorCode::environment, ErrorCode::limit,
                               ErrorCode::peer, ErrorCode::interrupted})
    if (static_cast<std::int32_t>(code) == number) return code;
  return ErrorCode::internal;
}

ServePlan checked(ServePlan plan) {
  if (const auto violations = verify(plan); !violations.empty())
    throw input_error(fmt::format("the plan cannot run: {}: {}", violations[0].place, violations[0].what),
                      violations[0].hint);
  if (const auto reasons = not_served(plan); !reasons.empty())
    throw input_error(fmt::format("the plan cannot be served: {}: {}", reasons[0].place, reasons[0].what),
                      reasons[0].hint);
  return plan;
}

DriverOptions checked(DriverOptions options) {
  if (options.transport != "shm" && options.transport != "tcp")
    throw input_error(fmt::format("unknown transport \"{}\"", options.transport), "known: shm, tcp");
  if (options.threads_per_worker < 1 || options.micro_batches < 0 || options.max_queue < 1 || !(options.watchdog_s > 0))
    throw input_error(
        fmt::format("{} threads per worker, {} micro-batches, a queue of {}, a watchdog of {} s",
                    options.threads_per_worker, options.micro_batches, options.max_queue, options.watchdog_s),
        "at least one thread and one place in the queue, a watchdog of more than 0 s; 0 micro-batches: the plan's");
  return options;
}

}  // namespace

// One thread starts the workers, waits for whatever comes from them, and hands out events. All that other threads
// may touch is under `mutex`, which is never held while waiting or calling back.
struct Driver::Impl {
  Impl(ServePlan given_plan, DriverOptions given_options)
      : plan(checked(std::move(given_plan))),
        options(checked(std::move(given_options))),
        dispatcher(plan, options.micro_batches, options.max_queue),
        wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  const ServePlan plan;
  const DriverOptions options;
  const Clock::time_point start = Clock::now();

  // ---- under the mutex ----
  enum class Phase { loading, warming_up, serving, failed };
  mutable std::mutex mutex;
  std::condition_variable changed;
  Phase phase = Phase::loading;
  bool draining = false;
  bool stopping = false;
  bool delivering = false;
  std::optional<Error> failure;
  Dispatcher dispatcher;
  std::set<std::uint64_t> open;  // requests whose end is still to be told; warm-ups are not among them
  std::vector<GenerateEvent> outbox;
  std::function<void(const Error&)> failure_callback;
  std::vector<WorkerStatus> worker_status;
  std::int64_t generated_tokens = 0, prompt_tokens = 0;

  // ---- of the driver's thread ----
  struct SentStep {
    std::size_t answering_worker = 0;  // rank 0 of the last stage
    std::size_t route = 0;
    Clock::time_point sent;
    double limit_s = 0;
  };
  WorkerProcesses workers;
  std::map<std::string, std::size_t> first_worker;  // of each stage
  std::vector<Progress> progress;
  std::vector<std::optional<Error>> reported;  // what a worker said of its own end
  std::size_t ready_workers = 0;
  std::vector<std::size_t> stirred;        // workers that have something to tell
  std::vector<std::uint64_t> last_answer;  // step, per worker
  std::map<std::uint64_t, SentStep> sent_steps;
  double slowest_step_s = 0, warm_up_step_s = 0;
  std::string reported_phase;
  double reported_fraction = 0;

  Descriptor wake;
  std::thread thread;

  void notify() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake.get(), &one, sizeof one);
  }

  void report(const std::string& what, const std::string& detail) const {
    if (options.report) options.report(what, detail, seconds_since(start));
  }

  // ---- the thread ----

  void run() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the program's, not ours
    try {
      launch();
      while (turn()) wait();
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail(Error(ErrorCode::internal, fmt::format("the driver failed: {}", error.what())));
    }
    end_requests();
    end_workers(workers, worker_grace_s);
    const std::lock_guard lock(mutex);
    for (WorkerStatus& status : worker_status) status.alive = false;
  }

  void launch() {
    workers = start_workers(plan, {.model_folder = options.model_folder,
                                   .program = options.worker_program,
                                   .transport = options.transport,
                                   .backend = options.backend,
                                   .threads = options.threads_per_worker});
    progress.resize(workers.size());
    reported.resize(workers.size());
    last_answer.resize(workers.size());
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      const WorkerProcess& worker = *workers[i];
      first_worker.emplace(worker.stage(), i);
      worker_status.push_back({.device = worker.device(),
                               .stage = worker.stage(),
                               .rank = worker.rank(),
                               .process = worker.process(),
                               .alive = true,
                               .allocated = {}});
    }
    report("workers", fmt::format("{} processes", workers.size()));
  }

  // Takes in what has come, sends what can start, hands out what came out. False: it is time to stop.
  bool turn() {
    bool trouble = false;
    for (const std::size_t i : stirred) trouble = !take_messages(i) || trouble;
    if (trouble) throw find_cause();
    check_watchdog();
    {
      const std::lock_guard lock(mutex);
      if (stopping) return false;
      while (const auto step = dispatcher.next()) send(*step);
    }
    deliver();
    return true;
  }

  void wait() {
    std::vector<pollfd> waiting{{wake.get(), POLLIN, 0}};
    for (const auto& worker : workers) {
      waiting.push_back(
          {worker->control_descriptor(), static_cast<short>(worker->has_unsent() ? POLLIN | POLLOUT : POLLIN), 0});
      waiting.push_back({worker->exit_descriptor(), POLLIN, 0});
    }
    double patience_s = 3600;
    for (const auto& [id, step] : sent_steps)
      patience_s = std::min(patience_s, step.limit_s - seconds_since(step.sent));
    ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max(patience_s, 0.0) * 1e3) + 1);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(wake.get(), &count, sizeof count);
    stirred.clear();
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (workers[i]->has_unsent()) workers[i]->write_some();
      if (waiting[1 + 2 * i].revents != 0 || waiting[2 + 2 * i].revents != 0) stirred.push_back(i);
    }
  }

  // ---- messages ----

  // False: this worker is lost.
  bool take_messages(std::size_t i) {
    try {
      for (const Message& message : workers[i]->read_messages())
        std::visit([&](const auto& m) { take(i, m); }, message);
    } catch (const Error& error) {
      reported[i] = error;
    }
    return !reported[i] && !workers[i]->connection_ended() && !workers[i]->look_for_exit();
  }

  // Messages that only the driver sends.
  template <class M>
  void take(std::size_t, const M&) {
    throw Error(ErrorCode::peer, "a message that workers do not send");
  }

  void take(std::size_t i, const Failure& failed) {
    reported[i] = Error(code_from(failed.code), failed.message, failed.hint);
  }

  void take(std::size_t i, const Progress& now) {
    progress[i] = now;
    double sum = 0;
    for (const Progress& p : progress) sum += p.phase == now.phase ? p.fraction : 0;
    const double fraction = sum / static_cast<double>(progress.size());
    constexpr double worth_a_line = 0.1;
    if (now.phase == reported_phase && fraction < reported_fraction + worth_a_line) return;
    reported_phase = now.phase;
    reported_fraction = fraction;
    report(now.phase, fmt::format("{:.0f} %", 100 * fraction));
  }

  void take(std::size_t i, const Ready& ready) {
    if (phase != Phase::loading || ready_workers == workers.size())
      throw Error(ErrorCode::peer, "an unexpected message");
    std::int64_t bytes = 0;
    {
      const std::lock_guard lock(mutex);
      worker_status[i].allocated = ready;
      for (const WorkerStatus& status : worker_status)
        bytes += status.allocated.weight_bytes + status.allocated.kv_bytes + status.allocated.activation_bytes;
    }
    if (++ready_workers < workers.size()) return;
    report("memory", human_bytes(static_cast<double>(bytes)));
    const std::lock_guard lock(mutex);
    phase = Phase::warming_up;
    const auto bos = static_cast<std::int32_t>(plan.model.arch.bos_token.value_or(0));
    for (std::size_t route = 0; route < plan.routes.size(); ++route)
      dispatcher.add({.prompt = {bos}, .max_new_tokens = 1, .sampling = {}, .stop_tokens = {}}, route);
  }

  void take(std::size_t i, const StepResult& result) {
    if (result.step <= last_answer[i])
      throw Error(ErrorCode::peer, fmt::format("it answered step {} after step {}", result.step, last_answer[i]));
    last_answer[i] = result.step;
    std::unique_lock lock(mutex);
    WorkerStatus& status = worker_status[i];
    status.busy_s += result.compute_s;
    status.waited_s += result.wait_s;
    ++status.steps;
    const auto sent = sent_steps.find(result.step);
    if (sent == sent_steps.end() || sent->second.answering_worker != i) return;
    slowest_step_s = std::max(slowest_step_s, seconds_since(sent->second.sent));
    sent_steps.erase(sent);
    for (GenerateEvent& event : dispatcher.complete(result)) post(std::move(event));
    if (phase != Phase::warming_up || !dispatcher.idle()) return;
    lock.unlock();
    warm_up_step_s = slowest_step_s;
    report("warm-up", fmt::format("a token on {}", plan.routes.size() == 1 ? "the route" : "every route"));
    lock.lock();
    phase = Phase::serving;
    changed.notify_all();
  }

  // Under the mutex.
  void post(GenerateEvent event) {
    if (!open.contains(event.request)) return;
    if (event.token) ++generated_tokens;
    if (event.finished) open.erase(event.request);
    outbox.push_back(std::move(event));
  }

  // ---- steps ----

  // Every worker of the route gets the same: what its stage does not need is small beside the hidden states.
  void send(const Step& step) {
    const std::vector<Hop>& path = plan.routes[step.route].path;
    const std::string frame = control_frame(step);
    for (const Hop& hop : path) {
      const std::size_t first = first_worker.at(hop.stage);
      for (std::size_t rank = 0; rank < plan.stage(hop.stage).devices.size(); ++rank)
        workers[first + rank]->send(frame);
    }
    sent_steps[step.step] = {first_worker.at(path.back().stage), step.route, Clock::now(), step_limit_s()};
  }

  // The first step pays for memory that was never touched. Later a step may take as long as its tokens would one by
  // one, and so may those before it.
  double step_limit_s() const {
    if (phase == Phase::warming_up) return 6 * options.watchdog_s;
    return std::max({options.watchdog_s, 10 * slowest_step_s,
                     2 * warm_up_step_s * static_cast<double>(dispatcher.tokens_under_way())});
  }

  void check_watchdog() const {
    for (const auto& [id, step] : sent_steps)
      if (const double elapsed_s = seconds_since(step.sent); elapsed_s > step.limit_s) throw hang(id, step, elapsed_s);
  }

  // Those behind a worker that hangs do not answer either: the first stage without an answer is to blame.
  Error hang(std::uint64_t id, const SentStep& step, double elapsed_s) const {
    std::string silent;
    for (const Hop& hop : plan.routes[step.route].path) {
      const std::size_t first = first_worker.at(hop.stage);
      for (std::size_t i = first; i < first + plan.stage(hop.stage).devices.size(); ++i)
        if (last_answer[i] < id) silent += (silent.empty() ? "" : ", ") + workers[i]->name();
      if (!silent.empty()) break;
    }
    return Error(ErrorCode::peer, fmt::format("{} did not answer step {} within {:.1f} s", silent, id, elapsed_s));
  }

  // ---- failure and the end ----

  // When one worker dies, its neighbours soon report that their connections broke. Looks for the one that did not fail
  // because of another: killed, or with an error of its own.
  Error find_cause() {
    const auto first_seen = Clock::now();
    for (;;) {
      std::optional<Error> consequence;
      const bool settled = seconds_since(first_seen) > settle_s;
      for (std::size_t i = 0; i < workers.size(); ++i) {
        if (take_messages(i)) continue;
        const auto& exit = workers[i]->look_for_exit();
        const bool killed = exit && exit->by_signal;
        const bool left_silently = exit && !reported[i] && exit->number != static_cast<int>(ErrorCode::peer);
        const bool own_error = reported[i] && reported[i]->code() != ErrorCode::peer;
        Error named = describe_loss(i);
        if (killed || left_silently || own_error) return named;
        if (!consequence) consequence = std::move(named);
      }
      if (settled) return *consequence;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  Error describe_loss(std::size_t i) {
    const auto& exit = workers[i]->look_for_exit();
    const std::string name = workers[i]->name();
    if (exit && exit->by_signal)
      return Error(
          ErrorCode::peer, fmt::format("{} {}", name, exit->text()),
          "where nobody killed it, memory may have run out (`dmesg` says so); starting again loads all workers");
    if (reported[i])
      return Error(reported[i]->code(), fmt::format("{}: {}", name, reported[i]->what()), reported[i]->hint());
    return Error(ErrorCode::peer, fmt::format("{} {}", name, exit ? exit->text() : "closed its control connection"));
  }

  void fail(const Error& cause) {
    std::function<void(const Error&)> callback;
    {
      const std::lock_guard lock(mutex);
      const bool starting = phase == Phase::loading || phase == Phase::warming_up;
      // While running, whatever ends a worker is the failure of a peer; before, it is what the worker says.
      failure =
          starting || cause.code() == ErrorCode::internal ? cause : Error(ErrorCode::peer, cause.what(), cause.hint());
      phase = Phase::failed;
      for (std::size_t i = 0; i < worker_status.size(); ++i) worker_status[i].alive = !workers[i]->look_for_exit();
      callback = failure_callback;
    }
    end_requests();
    if (callback) callback(*failure);
  }

  // Whatever is open ends here, and everybody who waits is told.
  void end_requests() {
    {
      const std::lock_guard lock(mutex);
      for (const std::uint64_t id : dispatcher.cancel_all())
        post({.request = id,
              .token = {},
              .finished = failure ? FinishReason::failed : FinishReason::cancelled,
              .stop_cause = failure ? failure->what() : ""});
    }
    deliver();
    changed.notify_all();
  }

  void deliver() {
    std::vector<GenerateEvent> batch;
    {
      const std::lock_guard lock(mutex);
      batch.swap(outbox);
      delivering = true;
    }
    if (!batch.empty() && options.on_events) options.on_events(std::move(batch));
    const std::lock_guard lock(mutex);
    delivering = false;
    if (draining && quiet()) changed.notify_all();
  }

  bool quiet() const { return dispatcher.idle() && outbox.empty() && !delivering; }
};

Driver::Driver(ServePlan plan, DriverOptions options)
    : impl_(std::make_unique<Impl>(std::move(plan), std::move(options))) {
  Impl& impl = *impl_;
  impl.thread = std::thread([&impl] { impl.run(); });
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&] { return impl.phase == Impl::Phase::serving || impl.phase == Impl::Phase::failed; });
  if (!impl.failure) return;
  const Error failure = *impl.failure;
  lock.unlock();
  impl.thread.join();
  throw failure;
}

Driver::~Driver() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->notify();
  impl_->thread.join();
}

std::uint64_t Driver::generate(GenerateRequest request) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->failure) throw Error(ErrorCode::peer, impl_->failure->what(), impl_->failure->hint());
  if (impl_->draining || impl_->stopping) throw Error(ErrorCode::limit, "the server is shutting down");
  const std::int64_t prompt_tokens = std::ssize(request.prompt);
  const std::uint64_t id = impl_->dispatcher.add(std::move(request));
  impl_->open.insert(id);
  impl_->prompt_tokens += prompt_tokens;
  impl_->notify();
  return id;
}

void Driver::cancel(std::uint64_t id) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->dispatcher.cancel(id)) return;
  impl_->post({.request = id, .token = {}, .finished = FinishReason::cancelled, .stop_cause = {}});
  impl_->notify();
}

void Driver::drain(double seconds) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  impl_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return impl_->quiet(); });
}

DriverStatus Driver::status() const {
  const std::lock_guard lock(impl_->mutex);
  DriverStatus status;
  status.ready = impl_->phase == Impl::Phase::serving;
  if (impl_->failure) status.failure = impl_->failure->what();
  status.workers = impl_->worker_status;
  status.generated_tokens = impl_->generated_tokens;
  status.prompt_tokens = impl_->prompt_tokens;
  status.uptime_s = seconds_since(impl_->start);
  impl_->dispatcher.describe(status);
  return status;
}

void Driver::on_failure(std::function<void(const Error&)> callback) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->failure) {
    impl_->failure_callback = std::move(callback);
    return;
  }
  const Error failure = *impl_->failure;
  lock.unlock();
  callback(failure);
}

const ServePlan& Driver::plan() const { return impl_->plan; }

}  // namespace motley
