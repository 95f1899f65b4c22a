#include "motley/server/plan_server.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/server/http_server.hpp"
#include "motley/server/service.hpp"
#include "motley/server/start_up.hpp"
#include "motley/serving/driver.hpp"

namespace motley {
namespace {

// How long after a failure the server still answers, so that open requests hear of it.
constexpr std::chrono::seconds failure_linger(1);
constexpr std::chrono::seconds last_answers(2);
// What may pass in addition to the time that requests have, until the process ends itself: a thread that hangs keeps
// nothing up.
constexpr double ending_s = 5;

// What ends the serving, whichever comes first.
class Ending {
 public:
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    changed_.notify_all();
  }
  void interrupt() {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return interrupted_ || failure_; });
  }
  std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool interrupted_ = false;
  std::optional<Error> failure_;
};

ServerOptions server_options(const ServeSettings& settings) {
  ServerOptions options;
  options.host = settings.host;
  options.port = settings.port;
  options.insecure = settings.insecure;
  options.origins = settings.origins;
  options.max_new_per_address = settings.new_per_address;
  return options;
}

}  // namespace

struct PlanServer::Impl {
  Impl(ServePlan given, ServedDeployment& served, StopSignals& stops, ServeSettings how)
      : settings(std::move(how)),
        deployment(served),
        signals(stops),
        plan(std::move(given)),
        service(plan, open_codec(settings, plan.model.arch.vocabulary),
                {.api_key = settings.api_key,
                 .operator_key = settings.operator_key,
                 .machines = deployment.machines(),
                 .share_prefixes = settings.share_prefixes,
                 .split_reasoning = settings.split_reasoning}),
        server([this](HttpRequest request,
                      std::shared_ptr<Exchange> exchange) { service.handle(std::move(request), std::move(exchange)); },
               server_options(settings)) {}
  // Signals end the process again once all that is below has come to its end.
  struct Disarmed {
    StopSignals& signals;
    ~Disarmed() { signals.disarm(); }
  };

  const ServeSettings settings;
  ServedDeployment& deployment;
  StopSignals& signals;
  ServePlan plan;
  Ending ending;
  const Disarmed at_end{signals};
  Service service;
  Server server;
  std::optional<Driver> driver;
};

PlanServer::PlanServer(ServePlan plan, ServedDeployment& deployment, StopSignals& signals, ServeSettings settings)
    : impl_(std::make_unique<Impl>(std::move(plan), deployment, signals, std::move(settings))) {}

PlanServer::~PlanServer() {
  impl_->deployment.stop_watching();
  impl_->service.detach();
}

int PlanServer::port() const { return impl_->server.port(); }

void PlanServer::start() {
  Impl& impl = *impl_;
  DriverOptions options = driver_options(impl.settings, impl.deployment);
  options.on_events = [&impl](std::vector<GenerateEvent> events) { impl.service.take(std::move(events)); };
  impl.driver.emplace(impl.plan, impl.deployment.fleet(), std::move(options));
  impl.driver->on_failure([&impl](const Error& error) { impl.ending.fail(error); });
  impl.service.attach(*impl.driver);
  impl.deployment.watch(*impl.driver);
  impl.signals.arm([&impl] { impl.ending.interrupt(); });
  impl.settings.report(impl.driver->status().ready ? "ready" : "waiting",
                       fmt::format("http://{}:{}/v1", impl.settings.host, port()));
}

void PlanServer::run() {
  Impl& impl = *impl_;
  const auto& report = impl.settings.report;
  const auto late = [&report] { report("ended", "before every thread had come to its end"); };
  impl.ending.wait();
  impl.signals.end_within(impl.settings.drain_s + ending_s, late);
  if (const auto failure = impl.ending.failure()) {
    impl.service.refuse(fmt::format("the deployment failed: {}", failure->what()));
    report("failed", failure->what());
    std::this_thread::sleep_for(failure_linger);
  } else {
    impl.service.refuse("the server is shutting down");
    report("draining", fmt::format("at most {} s", impl.settings.drain_s));
    impl.driver->drain(impl.settings.drain_s);
  }
  impl.signals.end_within(static_cast<double>(last_answers.count()) + ending_s, late);
  impl.deployment.stop_watching();
  impl.service.detach();
  impl.server.stop(last_answers);
  if (const auto failure = impl.ending.failure()) throw *failure;
}

}  // namespace motley
