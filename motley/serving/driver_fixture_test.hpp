// For the tests of this module: drivers with workers that only count (tests/programs/fake_worker.cpp) and with real
// ones, and what waits for their answers.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/serving/driver.hpp"
#include "motley/workers/local_fleet.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {

using EventCallback = std::function<void(const GenerateEvent&)>;

// What a driver runs with, and where its workers run.
struct DriverSetup : DriverOptions {
  std::shared_ptr<Fleet> fleet;
};

// A driver that hands every request's events to a callback of its own, on the driver's thread.
class CallingDriver {
 public:
  CallingDriver(ServePlan plan, const DriverSetup& options)
      : fleet_(options.fleet), driver_(std::move(plan), *fleet_, with_sink(options)) {}

  std::uint64_t generate(GenerateRequest request, EventCallback callback) {
    const std::lock_guard lock(mutex_);  // so that no event comes before its callback is known
    const std::uint64_t id = driver_.generate(std::move(request));
    callbacks_.emplace(id, std::move(callback));
    return id;
  }
  void cancel(std::uint64_t id) { driver_.cancel(id); }
  void drain(double seconds) { driver_.drain(seconds); }
  DriverStatus status() const { return driver_.status(); }
  void change_plan(ServePlan plan) { driver_.change_plan(std::move(plan)); }
  void on_failure(std::function<void(const Error&)> callback) { driver_.on_failure(std::move(callback)); }
  // The numbers of events that came together, so far.
  std::vector<std::size_t> batches() const {
    const std::lock_guard lock(mutex_);
    return batches_;
  }

 private:
  DriverOptions with_sink(DriverOptions options) {
    options.on_events = [this](const std::vector<GenerateEvent>& events) { take(events); };
    return options;
  }
  void take(const std::vector<GenerateEvent>& events) {
    for (const GenerateEvent& event : events) {
      std::unique_lock lock(mutex_);
      const EventCallback callback = callbacks_.at(event.request);
      if (event.finished) callbacks_.erase(event.request);
      lock.unlock();
      callback(event);
    }
    const std::lock_guard lock(mutex_);
    batches_.push_back(events.size());
  }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, EventCallback> callbacks_;  // of the requests that have not ended
  std::vector<std::size_t> batches_;
  const std::shared_ptr<Fleet> fleet_;
  Driver driver_;  // last: its thread uses the rest
};

// Collects what a request brings.
class StreamedAnswer {
 public:
  EventCallback callback() {
    return [state = state_](const GenerateEvent& event) {
      const std::lock_guard lock(state->mutex);
      if (state->finished) ++state->events_after_the_end;
      if (event.token) state->tokens.push_back(event.token->token);
      if (event.finished) state->finished = event.finished;
      state->stop_cause += event.stop_cause;
      state->changed.notify_all();
    };
  }
  bool wait_for_tokens(std::size_t count, double seconds = 20) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return state_->tokens.size() >= count; });
  }
  // None: it did not end in time.
  std::optional<FinishReason> wait(double seconds = 20) const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                             [&] { return state_->finished.has_value(); });
    return state_->finished;
  }
  std::vector<std::int32_t> tokens() const {
    const std::lock_guard lock(state_->mutex);
    return state_->tokens;
  }
  std::string stop_cause() const {
    const std::lock_guard lock(state_->mutex);
    return state_->stop_cause;
  }
  int events_after_the_end() const {
    const std::lock_guard lock(state_->mutex);
    return state_->events_after_the_end;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::int32_t> tokens;
    std::optional<FinishReason> finished;
    std::string stop_cause;
    int events_after_the_end = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // a callback may come after the test has given up
};

// Greedy, and never ended by the model itself.
inline GenerateRequest ask(std::vector<std::int32_t> prompt, std::int64_t max_new_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  return request;
}

inline std::shared_ptr<Fleet> fake_workers() {
  return std::make_shared<LocalFleet>(LocalFleetOptions{.program = program_beside("fake-worker")});
}

inline DriverSetup fake(const std::string& settings = "") {
  DriverSetup options;
  options.model_folder = settings;
  options.fleet = fake_workers();
  return options;
}

// What the fake workers answer.
inline std::vector<std::int32_t> expected_tokens(std::vector<std::int32_t> known, std::int64_t count) {
  std::vector<std::int32_t> out;
  for (; count > 0; --count) {
    std::uint64_t hash = 17;
    for (const std::int32_t token : known) hash = (hash + static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15;
    out.push_back(static_cast<std::int32_t>(1024 + (hash >> 32) % 1024));
    known.push_back(out.back());
  }
  return out;
}

inline int open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

inline bool wait_until(const std::function<bool()>& condition, double seconds) {
  for (const Instant end = deadline_in(seconds); Clock::now() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (condition()) return true;
  return condition();
}

// Every test leaves neither process nor descriptor behind.
class DriverTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(open_descriptors(), descriptors_);
  }
  int descriptors_ = open_descriptors();
};

// With the real worker and the tales model.
inline DriverSetup real(const std::string& transport) {
  DriverSetup options;
  options.model_folder = MOTLEY_SOURCE_DIR "/data/models/tales";
  options.fleet = std::make_shared<LocalFleet>(
      LocalFleetOptions{.program = program_beside("motley-worker"), .transport = transport});
  return options;
}

}  // namespace motley
