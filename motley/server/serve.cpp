#include "motley/server/serve.hpp"

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
// What may pass beside the time that requests have, until the process ends itself: a thread that hangs keeps nothing
// up.
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

// Signals end the process again when this is left.
struct Disarmed {
  explicit Disarmed(StopSignals& given) : signals(given) {}
  ~Disarmed() { signals.disarm(); }
  Disarmed(const Disarmed&) = delete;
  Disarmed& operator=(const Disarmed&) = delete;
  StopSignals& signals;
};

}  // namespace

int serve_plan(ServePlan plan, Fleet& fleet, StopSignals& signals, ServeSettings settings) {
  Ending ending;
  const Disarmed at_end(signals);
  const auto& report = settings.report;
  Service service(plan, open_codec(settings, plan.model.arch.vocabulary),
                  {.api_key = settings.api_key,
                   .operator_key = settings.operator_key,
                   .drain = settings.drain,
                   .new_link = settings.new_link,
                   .deployment = settings.deployment});

  ServerOptions server_options;
  server_options.host = settings.host;
  server_options.port = settings.port;
  server_options.insecure = settings.insecure;
  server_options.origins = settings.origins;
  server_options.max_new_per_address = settings.new_per_address;
  // The port is taken before the workers start: if it is in use, that is said at once.
  Server server([&](HttpRequest request,
                    std::shared_ptr<Exchange> exchange) { service.handle(std::move(request), std::move(exchange)); },
                server_options);
  if (settings.on_listening) settings.on_listening(server.port());

  DriverOptions driver_settings = driver_options(settings);
  driver_settings.on_events = [&service](std::vector<GenerateEvent> events) { service.take(std::move(events)); };
  Driver driver(std::move(plan), fleet, std::move(driver_settings));
  driver.on_failure([&](const Error& error) { ending.fail(error); });
  service.attach(driver);
  if (settings.on_driver) settings.on_driver(driver);
  signals.arm([&ending] { ending.interrupt(); });
  report(driver.status().ready ? "ready" : "waiting", fmt::format("http://{}:{}/v1", settings.host, server.port()));
  if (settings.on_ready) settings.on_ready(server.port());

  ending.wait();
  const auto late = [&report] { report("ended", "before every thread had come to its end"); };
  signals.end_within(settings.drain_s + ending_s, late);
  if (const auto failure = ending.failure()) {
    service.refuse(fmt::format("the deployment failed: {}", failure->what()));
    report("failed", failure->what());
    std::this_thread::sleep_for(failure_linger);
  } else {
    service.refuse("the server is shutting down");
    report("draining", fmt::format("at most {} s", settings.drain_s));
    driver.drain(settings.drain_s);
  }
  signals.end_within(static_cast<double>(last_answers.count()) + ending_s, late);
  if (settings.before_end) settings.before_end();
  service.detach();
  server.stop(last_answers);
  if (const auto failure = ending.failure()) throw *failure;
  return 0;
}

}  // namespace motley
