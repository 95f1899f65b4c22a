// For the tests of this module: plans over toy devices, and somebody who waits for an answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "motley/server/driver.hpp"

namespace motley {

// One route per list of degrees, its stages sharing the layers of the tales model about equally; devices box/0, box/1,
// ... of 64 MiB each, in order.
inline ServePlan toy_plan(const std::vector<std::vector<int>>& routes, std::int64_t kv_tokens = 1024) {
  ServePlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.workload = default_workload();
  plan.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  int devices = 0;
  for (const auto& degrees : routes) {
    Route route{.id = "r" + std::to_string(plan.routes.size()), .path = {}};
    const auto stages = std::ssize(degrees);
    for (std::ptrdiff_t s = 0; s < stages; ++s) {
      Stage stage{.id = route.id + "/s" + std::to_string(s),
                  .layers = {8 * s / stages, 8 * (s + 1) / stages},
                  .devices = {},
                  .shares = {}};
      stage.embedding = s == 0;
      stage.head = s + 1 == stages;
      stage.kv_tokens = kv_tokens;
      stage.weight_type = stage.kv_type = DType::fp32;
      for (int rank = 0; rank < degrees[static_cast<std::size_t>(s)]; ++rank)
        stage.devices.push_back("box/" + std::to_string(devices++));
      route.path.push_back({stage.id, stage.layers});
      plan.stages.push_back(stage);
    }
    plan.routes.push_back(route);
  }
  const std::string cluster =
      "format = \"motley.cluster/1\"\nname = \"toys\"\n[[machine]]\nname = \"box\"\ndevices = [\"toy*" +
      std::to_string(devices) +
      "\"]\n[[device_type]]\nname = \"toy\"\nvendor = \"cpu\"\nmemory = \"64 MiB\"\n"
      "memory_bandwidth = \"8 GB/s\"\nflops = { fp32 = \"40 GFLOP/s\" }\nreserve = \"0 B\"\n"
      "[network]\nwithin_machine = { latency = \"20 us\", bandwidth = \"2 GB/s\" }\n";
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(cluster, "toys.toml"), "toys.toml"), "toys.toml");
  return plan;
}

// The programs stand beside the test.
inline std::filesystem::path program_beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

using EventCallback = std::function<void(const GenerateEvent&)>;

// A driver that hands every request's events to a callback of its own, on the driver's thread.
class CallingDriver {
 public:
  CallingDriver(ServePlan plan, DriverOptions options) : driver_(std::move(plan), with_sink(std::move(options))) {}

  std::uint64_t generate(GenerateRequest request, EventCallback callback) {
    const std::lock_guard lock(mutex_);  // so that no event comes before its callback is known
    const std::uint64_t id = driver_.generate(std::move(request));
    callbacks_.emplace(id, std::move(callback));
    return id;
  }
  void cancel(std::uint64_t id) { driver_.cancel(id); }
  void drain(double seconds) { driver_.drain(seconds); }
  DriverStatus status() const { return driver_.status(); }
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
  Driver driver_;  // last: its thread uses the rest
};

// Collects what a request brings.
class Answer {
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

}  // namespace motley
