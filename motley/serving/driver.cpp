#include "motley/serving/driver.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/serving/dispatcher.hpp"
#include "motley/workers/launch.hpp"
#include "motley/workers/worker_preparation.hpp"

namespace motley {
namespace {

constexpr const char* nothing_fits = "no plan fits the machines that are left";

DriverOptions checked(DriverOptions options) {
  if (options.micro_batches < 0 || options.max_queue < 1 || !(options.watchdog_s > 0))
    throw input_error(fmt::format("{} micro-batches, a queue of {}, a watchdog of {} s", options.micro_batches,
                                  options.max_queue, options.watchdog_s),
                      "give a queue of at least 1 and a watchdog above 0 s; 0 micro-batches means the plan's number");
  return options;
}

}  // namespace

// One thread starts the workers, waits for whatever comes from them, and hands out events. All that other threads
// may touch is under `mutex`, which is never held while waiting or calling back.
struct Driver::Impl {
  Impl(ServePlan plan, Fleet& of_workers, DriverOptions given_options)
      : fleet(of_workers),
        options(checked(std::move(given_options))),
        deployment(std::move(plan), options.replan, options.restart),
        dispatcher(deployment.plan(), options.micro_batches, options.max_queue, options.step_rule,
                   options.prefix_cache) {}

  Fleet& fleet;
  const DriverOptions options;
  const Instant start = Clock::now();

  // ---- under the mutex ----
  mutable std::mutex mutex;
  std::condition_variable changed;
  DeploymentState deployment;          // only the driver's thread writes it
  std::unique_ptr<WorkerSet> workers;  // only the driver's thread uses it; of the deployment's epoch
  std::optional<ServePlan> asked_plan;
  bool draining = false;
  bool stopping = false;
  bool delivering = false;
  Dispatcher dispatcher;
  std::set<std::uint64_t> open;  // requests whose end is still to be told; warm-ups are not among them
  std::vector<GenerateEvent> outbox;
  std::function<void(const Error&)> failure_callback;
  std::map<std::pair<std::string, std::string>, WorkerStatus> done;  // by device and stage: what earlier workers did
  std::int64_t generated_tokens = 0, prompt_tokens = 0;
  std::map<std::string, double> slow;  // by device

  Instant looked_for_slow = start;
  std::optional<Instant> down_since;
  std::optional<WorkerLoss> start_loss;  // the workers of the epoch could not be started
  Workers earlier;                       // of the plan before, that may stay
  Workers prepared;                      // for the plan that takes effect next
  CacheHandover handover;                // as the plan took effect
  struct Preparing {
    ServePlan plan;
    std::unique_ptr<WorkerPreparation> workers;
    bool loads = false;  // those that serve load what they lack
  };
  std::optional<Preparing> preparing;
  std::unique_ptr<WorkerStart> standby;  // weights on their way to the machines

  Wakeup wake;
  std::thread thread;

  void report(const std::string& what, const std::string& detail) const {
    if (options.report) options.report(what, detail);
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
      apply([&](DeploymentState& next) { next.fail(error); });
    } catch (const std::exception& error) {
      apply([&](DeploymentState& next) {
        next.fail(Error(ErrorCode::internal, fmt::format("the driver failed: {}", error.what())));
      });
    }
    end_requests();
    standby.reset();
    preparing.reset();
    prepared.clear();
    end_earlier();
    if (workers) workers->end();
  }

  // One event of the deployment. Where it brings another plan, that plan's workers replace the others: those that do
  // not stay end first, since both may need the same memory.
  template <class Event>
  void apply(Event event, const std::vector<std::string>& lost = {}) {
    DeploymentState next = deployment;
    event(next);
    std::unique_ptr<WorkerSet> ending;
    {
      const std::lock_guard lock(mutex);
      const bool other_plan = next.epoch() != deployment.epoch();
      const bool goes_down = next.phase() == DeploymentPhase::down;
      deployment = std::move(next);
      if (!other_plan && !goes_down) return;
      down_since = goes_down ? std::optional(Clock::now()) : std::nullopt;
      handover = dispatcher.change_plan(deployment.plan(), deployment.epoch(), {lost.begin(), lost.end()});
      for (const WorkerStatus& worker : workers ? workers->status() : std::vector<WorkerStatus>()) {
        WorkerStatus& sum = done[{worker.device, worker.stage}];
        sum.busy_s += worker.busy_s;
        sum.waited_s += worker.waited_s;
        sum.steps += worker.steps;
      }
      ending = std::move(workers);
    }
    deliver();  // what came out of the old workers need not wait for the new ones
    standby.reset();
    if (ending) earlier = ending->take_workers();
    std::ranges::move(std::exchange(prepared, {}), std::back_inserter(earlier));
    end_earlier([&](const Worker& worker) { return down_since || std::ranges::count(lost, worker.device) > 0; });
    if (down_since) {
      changed.notify_all();
      return report("down", "nothing fits what is left: requests wait for another plan");
    }
    report("plan", fmt::format("number {} takes effect", deployment.epoch()));
    std::this_thread::sleep_for(duration_of(deployment.wait_s()));
    launch();
  }

  void launch() {
    const std::shared_ptr<const ServePlan> plan = deployment.plan();
    Workers started;
    try {
      started = start_workers(fleet, worker_devices(*plan), reads(plan), earlier);
    } catch (const WorkersNotStarted& error) {
      start_loss = error.loss;
      return;
    }
    launch_workers(started, *plan, deployment.epoch(), handover);
    report("workers", fmt::format("{} processes", started.size()));
    auto set = std::make_unique<WorkerSet>(
        plan, deployment.epoch(), std::move(started),
        WorkerSetOptions{
            .watchdog_s = options.watchdog_s,
            .report = [this](const std::string& phase, const std::string& detail) { report(phase, detail); }});
    const std::lock_guard lock(mutex);
    workers = std::move(set);
  }

  WorkerReads reads(const std::shared_ptr<const ServePlan>& plan, ReadsOf of = ReadsOf::own_layers) const {
    return {.model = options.model_folder,
            .rows = [plan, of](const std::string& device) { return rows_of(*plan, device, of); }};
  }

  void end_earlier(const std::function<bool(const Worker&)>& which = [](const Worker&) { return true; }) {
    constexpr double grace_s = 1;
    const auto ending =
        std::stable_partition(earlier.begin(), earlier.end(), [&](const Worker& worker) { return !which(worker); });
    Workers ended(std::make_move_iterator(ending), std::make_move_iterator(earlier.end()));
    earlier.erase(ending, earlier.end());
    end_workers(ended, grace_s);
  }

  // Takes in what has come, sends what can start, hands out what came out. False: it is time to stop.
  bool turn() {
    if (const auto loss = take_loss())
      recover(*loss);
    else
      advance();
    fail_held_requests();
    look_for_slow();
    {
      const std::lock_guard lock(mutex);
      if (stopping || deployment.phase() == DeploymentPhase::failed) return false;
      if (deployment.phase() == DeploymentPhase::warming_up || deployment.phase() == DeploymentPhase::serving)
        while (const auto step = dispatcher.next()) workers->send(*step);
    }
    deliver();
    return true;
  }

  void wait() {
    if (start_loss) return;
    constexpr double long_s = 3600;
    double most_s = long_s;
    if (const auto returns_s = deployment.returns_s()) most_s = std::min(most_s, *returns_s - seconds_since(start));
    constexpr double look_every_s = 0.02;
    if (preparing || standby) most_s = std::min(most_s, look_every_s);
    if (down_since) most_s = std::min(most_s, options.hold_s - seconds_since(*down_since) + 0.01);
    most_s = most_s > 0 ? most_s : down_since ? long_s : 0;
    if (workers) {
      workers->wait(wake.descriptor(), most_s);
    } else {
      pollfd waiting{wake.descriptor(), POLLIN, 0};
      ::poll(&waiting, 1, poll_timeout_ms(deadline_in(most_s)));
    }
    wake.clear();
  }

  std::optional<WorkerLoss> take_loss() {
    if (start_loss) return std::exchange(start_loss, std::nullopt);
    if (!workers) return std::nullopt;
    return workers->receive([this](const StepResult& result, const StepSeconds& measured) { take(result, measured); });
  }

  // Once down for long enough.
  bool refuses() const { return down_since && seconds_since(*down_since) > options.hold_s; }

  void fail_held_requests() {
    const std::lock_guard lock(mutex);
    if (!refuses()) return;
    for (const std::uint64_t id : dispatcher.cancel_all())
      post({.request = id, .token = {}, .finished = FinishReason::failed, .stop_cause = nothing_fits});
  }

  void look_for_slow() {
    constexpr double look_every_s = 0.25;
    if (!workers || seconds_since(looked_for_slow) < look_every_s) return;
    looked_for_slow = Clock::now();
    const std::vector<StepAtWork> at_work = workers->at_work();
    std::map<std::string, double> before, now;
    {
      const std::lock_guard lock(mutex);
      now = dispatcher.slow(at_work);
      before = std::exchange(slow, now);
    }
    for (const auto& [device, factor] : now)
      if (!before.contains(device))
        report("slow", fmt::format("{} computes {:.1f} times slower than it used to", device, factor));
    for (const auto& [device, factor] : before)
      if (!now.contains(device) && std::ranges::count(worker_devices(*deployment.plan()), device) > 0)
        report("slow", fmt::format("{} is not slow any more", device));
  }

  void take(const StepResult& result, const StepSeconds& measured) {
    const std::lock_guard lock(mutex);
    if (!result.tokens.empty() && deployment.phase() == DeploymentPhase::serving) deployment.produced();
    for (GenerateEvent& event : dispatcher.complete(result, measured)) post(std::move(event));
  }

  // Under the mutex.
  void post(GenerateEvent event) {
    if (!open.contains(event.request)) return;
    if (event.token) ++generated_tokens;
    if (event.finished) open.erase(event.request);
    outbox.push_back(std::move(event));
  }

  // ---- from plan to plan ----

  void advance() {
    if (auto plan = take_asked_plan()) prepare(*std::move(plan));
    look_after_preparation();
    look_after_standby();
    if (const auto returns_s = deployment.returns_s(); returns_s && *returns_s <= seconds_since(start))
      apply([&](DeploymentState& next) { next.return_lost(seconds_since(start), fleet.out_of_service()); });
    if (deployment.phase() == DeploymentPhase::loading && workers && workers->ready()) {
      apply([](DeploymentState& next) { next.loaded(); });
      const std::lock_guard lock(mutex);
      dispatcher.adopt(workers->cache_epochs());
      dispatcher.warm_up();
    }
    if (deployment.phase() == DeploymentPhase::warming_up && dispatcher.warm()) serve();
    if (deployment.phase() == DeploymentPhase::pausing && (!workers || workers->idle()))
      apply([](DeploymentState& next) { next.paused(); });
  }

  void prepare(ServePlan plan) {
    preparing.reset();
    if (deployment.phase() != DeploymentPhase::serving)
      return apply([&](DeploymentState& next) { next.change_to(std::move(plan)); });
    std::set<std::string> running;
    for (const WorkerStatus& worker : workers->status()) running.insert(worker.device);
    standby.reset();
    report("prepare", "workers of the next plan start and load meanwhile");
    try {
      auto begun =
          std::make_unique<WorkerPreparation>(fleet, plan, running, reads(std::make_shared<const ServePlan>(plan)));
      preparing.emplace(Preparing{std::move(plan), std::move(begun)});
    } catch (const Error& error) {
      give_up_preparation(error);
    }
  }

  void look_after_preparation() {
    if (!preparing) return;
    try {
      if (!preparing->workers->done()) return;
      if (!std::exchange(preparing->loads, true)) workers->preload(preparing->plan);
      if (workers->preloaded()) change_to_prepared();
    } catch (const Error& error) {
      give_up_preparation(error);
    }
  }

  void give_up_preparation(const Error& why) {
    report("plan", fmt::format("no change: {}", why.what()));
    preparing.reset();
    begin_standby();
  }

  void begin_standby() {
    const std::shared_ptr<const ServePlan> plan = deployment.plan();
    if (std::ranges::any_of(plan->stages, [](const Stage& stage) { return !stage.standby_weights.empty(); }))
      try_standby([&] { standby = fleet.begin({}, worker_devices(*plan), reads(plan, ReadsOf::standby_too)); });
  }

  void look_after_standby() {
    if (!standby) return;
    try_standby([&] {
      if (Workers none; !standby->take(none)) return;
      standby.reset();
      workers->load_standby();
    });
  }

  // The deployment goes on without them.
  template <class Attempt>
  void try_standby(Attempt attempt) {
    try {
      attempt();
    } catch (const Error& error) {
      standby.reset();
      report("standby", fmt::format("weights are not there: {}", error.what()));
    }
  }

  void change_to_prepared() {
    prepared = preparing->workers->take();
    ServePlan plan = std::move(preparing->plan);
    preparing.reset();
    apply([&](DeploymentState& next) { next.change_to(std::move(plan)); });
  }

  std::optional<ServePlan> take_asked_plan() {
    const std::lock_guard lock(mutex);
    return std::exchange(asked_plan, std::nullopt);
  }

  void serve() {
    workers->warmed_up();
    report("warm-up",
           fmt::format("a token on {}", deployment.plan()->routes.size() == 1 ? "the route" : "every route"));
    apply([](DeploymentState& next) { next.warmed_up(); });
    begin_standby();
    const std::lock_guard lock(mutex);
    for (GenerateEvent& event : dispatcher.resume()) post(std::move(event));
    changed.notify_all();
  }

  void recover(const WorkerLoss& loss) {
    const bool stay = loss.kv_tokens > 0;
    if (stay || options.replan || options.restart.deaths > 1) report(stay ? "memory" : "lost", loss.cause.what());
    if (preparing) change_to_prepared();  // it takes effect at once, if it does without what was lost
    apply([&](DeploymentState& next) { next.lost(loss, seconds_since(start)); },
          stay ? std::vector<std::string>() : loss.devices);
  }

  // ---- the end ----

  // Every open request ends here, with an event.
  void end_requests() {
    std::optional<Error> failure;
    std::function<void(const Error&)> callback;
    {
      const std::lock_guard lock(mutex);
      failure = deployment.failure();
      callback = failure_callback;
      for (const std::uint64_t id : dispatcher.cancel_all())
        post({.request = id,
              .token = {},
              .finished = failure ? FinishReason::failed : FinishReason::cancelled,
              .stop_cause = failure ? failure->what() : ""});
    }
    deliver();
    changed.notify_all();
    if (failure && callback) callback(*failure);
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

Driver::Driver(ServePlan plan, Fleet& fleet, DriverOptions options)
    : impl_(std::make_unique<Impl>(std::move(plan), fleet, std::move(options))) {
  Impl& impl = *impl_;
  impl.thread = std::thread([&impl] { impl.run(); });
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&] {
    const DeploymentPhase phase = impl.deployment.phase();
    return phase == DeploymentPhase::serving || phase == DeploymentPhase::down || phase == DeploymentPhase::failed;
  });
  if (!impl.deployment.failure()) return;
  const Error failure = *impl.deployment.failure();
  lock.unlock();
  impl.thread.join();
  throw failure;
}

Driver::~Driver() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify();
  impl_->thread.join();
}

std::uint64_t Driver::generate(GenerateRequest request) {
  const std::lock_guard lock(impl_->mutex);
  if (const auto& failure = impl_->deployment.failure()) throw Error(ErrorCode::peer, failure->what(), failure->hint());
  if (impl_->refuses()) throw Error(ErrorCode::peer, nothing_fits, "try again when more machines have joined");
  if (impl_->draining || impl_->stopping) throw Error(ErrorCode::limit, "the server is shutting down");
  const std::int64_t prompt_tokens = std::ssize(request.prompt);
  const std::uint64_t id = impl_->dispatcher.add(std::move(request));
  impl_->open.insert(id);
  impl_->prompt_tokens += prompt_tokens;
  impl_->wake.notify();
  return id;
}

void Driver::cancel(std::uint64_t id) {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->dispatcher.cancel(id)) return;
  impl_->post({.request = id, .token = {}, .finished = FinishReason::cancelled, .stop_cause = {}});
  impl_->wake.notify();
}

void Driver::drain(double seconds) {
  std::unique_lock lock(impl_->mutex);
  impl_->draining = true;
  impl_->changed.wait_for(lock, duration_of(seconds), [&] { return impl_->quiet(); });
}

void Driver::change_plan(ServePlan plan) {
  const std::lock_guard lock(impl_->mutex);
  DeploymentState rehearsal = impl_->deployment;
  rehearsal.change_to(plan);
  impl_->asked_plan = std::move(plan);
  impl_->wake.notify();
}

DriverStatus Driver::status() const {
  const std::lock_guard lock(impl_->mutex);
  DriverStatus status;
  status.phase = impl_->deployment.phase();
  status.ready = status.phase == DeploymentPhase::serving;
  if (const auto& failure = impl_->deployment.failure()) status.failure = failure->what();
  status.plan = impl_->deployment.plan();
  status.epoch = impl_->deployment.epoch();
  if (impl_->workers) status.workers = impl_->workers->status();
  for (WorkerStatus& worker : status.workers)
    if (const auto done = impl_->done.find({worker.device, worker.stage}); done != impl_->done.end()) {
      worker.busy_s += done->second.busy_s;
      worker.waited_s += done->second.waited_s;
      worker.steps += done->second.steps;
    }
  status.generated_tokens = impl_->generated_tokens;
  status.prompt_tokens = impl_->prompt_tokens;
  status.slow = impl_->slow;
  status.lost = impl_->deployment.lost_devices();
  status.uptime_s = seconds_since(impl_->start);
  impl_->dispatcher.describe(status);
  return status;
}

void Driver::on_failure(std::function<void(const Error&)> callback) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->deployment.failure()) {
    impl_->failure_callback = std::move(callback);
    return;
  }
  const Error failure = *impl_->deployment.failure();
  lock.unlock();
  callback(failure);
}

std::shared_ptr<const ServePlan> Driver::plan() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->deployment.plan();
}

}  // namespace motley
