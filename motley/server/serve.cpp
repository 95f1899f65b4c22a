#include "motley/server/serve.hpp"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "motley/base/clock.hpp"
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

// Catches SIGINT and SIGTERM while it lives. The first after arm() goes to `ending`; any other ends the process, and
// with it the workers, which die with their driver. So does the time after end_within().
class Signals {
 public:
  Signals(Ending& ending, Reporter& report, std::function<void()> on_abort)
      : ending_(ending),
        report_(report),
        on_abort_(std::move(on_abort)),
        signals_(context_, SIGINT, SIGTERM),
        timer_(context_) {
    wait();
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Signals() {
    context_.stop();
    thread_.join();
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void arm() { armed_ = true; }

  // Replaces an earlier time.
  void end_within(double seconds) {
    boost::asio::post(context_, [this, seconds] {
      timer_.expires_after(duration_of(seconds));
      timer_.async_wait([this](const boost::system::error_code& status) {
        if (status) return;
        report_("ended", "before every thread had come to its end");
        abort();
      });
    });
  }

 private:
  [[noreturn]] void abort() {
    if (on_abort_) on_abort_();
    std::_Exit(static_cast<int>(ErrorCode::interrupted));
  }

  void wait() {
    signals_.async_wait([this](const boost::system::error_code& status, int) {
      if (status) return;
      if (!armed_.exchange(false)) abort();
      ending_.interrupt();
      wait();
    });
  }

  Ending& ending_;
  Reporter& report_;
  const std::function<void()> on_abort_;
  boost::asio::io_context context_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer timer_;
  std::atomic<bool> armed_{false};
  std::thread thread_;
};

}  // namespace

int serve_plan(ServePlan plan, Fleet& fleet, ServeSettings settings) {
  Ending ending;
  Reporter report(settings.report);
  Signals signals(ending, report, settings.on_abort);
  Service service(plan, open_codec(settings, plan.model.arch.vocabulary, report),
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

  DriverOptions driver_settings = driver_options(settings, report);
  driver_settings.on_events = [&service](std::vector<GenerateEvent> events) { service.take(std::move(events)); };
  Driver driver(std::move(plan), fleet, std::move(driver_settings));
  driver.on_failure([&](const Error& error) { ending.fail(error); });
  service.attach(driver);
  if (settings.on_driver) settings.on_driver(driver);
  signals.arm();
  report(driver.status().ready ? "ready" : "waiting", fmt::format("http://{}:{}/v1", settings.host, server.port()));
  if (settings.on_ready) settings.on_ready(server.port());

  ending.wait();
  signals.end_within(settings.drain_s + ending_s);
  if (const auto failure = ending.failure()) {
    service.refuse(fmt::format("the deployment failed: {}", failure->what()));
    report("failed", failure->what());
    std::this_thread::sleep_for(failure_linger);
  } else {
    service.refuse("the server is shutting down");
    report("draining", fmt::format("at most {} s", settings.drain_s));
    driver.drain(settings.drain_s);
  }
  signals.end_within(last_answers.count() + ending_s);
  if (settings.before_end) settings.before_end();
  service.detach();
  server.stop(last_answers);
  if (const auto failure = ending.failure()) throw *failure;
  return 0;
}

}  // namespace motley
