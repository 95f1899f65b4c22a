// Sessions whose steps build on state: one that comes late pulls it from those who are there.
#include "motley/comm/session/state_sync.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "motley/comm/membership/coordinator_thread_test.hpp"

namespace motley {
namespace {

// A vector that every step adds to, larger than a chunk: its value tells all steps that were taken.
class Trainee {
 public:
  Trainee(const std::string& coordinator, const std::string& id)
      : state_(1'200'000), sync_({.group = "test"}, access()), session_(options(coordinator, id)) {}

  // `wish`: to stop after this step, which all members do where one of them wants to.
  SessionOutcome step(bool wish) {
    std::array<float, 2> mean{};
    const auto outcome = session_.run(
        [&](SessionStep& step) {
          mean = {static_cast<float>(step.step), wish ? 1.0F : 0.0F};
          return step.communicator.all_reduce(std::as_writable_bytes(std::span(mean)), CollectiveElement::fp32,
                                              {.reduction = CollectiveReduction::mean, .timeout_s = 20});
        },
        {.timeout_s = 60});
    if (outcome.status == SessionStatus::committed)
      for (float& value : state_) value += mean[0];
    stopped_ = mean[1] > 0;
    return outcome;
  }
  float value() const { return state_.front(); }
  bool even() const { return std::adjacent_find(state_.begin(), state_.end(), std::not_equal_to<>()) == state_.end(); }
  const StateTransferOutcome& pulled() const { return sync_.last_pull(); }
  bool stopped() const { return stopped_; }

 private:
  StateAccess access() {
    return {.save =
                [this] {
                  return std::vector<StateBuffer<const std::byte>>{{"vector", std::as_bytes(std::span(state_))}};
                },
            .place =
                [this](const StateManifest&) {
                  return std::vector<StateBuffer<std::byte>>{{"vector", std::as_writable_bytes(std::span(state_))}};
                },
            .load = [] {}};
  }
  SessionOptions options(const std::string& coordinator, const std::string& id) {
    SessionOptions result = options_of(coordinator, id);
    result.fetch_state = std::ref(sync_);
    return result;
  }

  std::vector<float> state_;
  bool stopped_ = false;
  StateSync sync_;
  Session session_;
};

TEST(StateSync, AJoinerHasTheStateBeforeItsFirstStep) {
  CoordinatorThread coordinator({.minimum_size = 2});
  std::atomic<bool> begun = false;
  const auto stay = [&](const std::string& id) {
    Trainee trainee(coordinator.address(), id);
    while (!trainee.stopped()) {
      const auto outcome = trainee.step(false);
      ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      // 1 + 2 + ... + step
      EXPECT_EQ(trainee.value(), static_cast<float>(outcome.step * (outcome.step + 1) / 2));
      if (outcome.step >= 3) begun = true;
    }
    EXPECT_TRUE(trainee.pulled().peers.empty());  // was there all the time
  };
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b"}) members.emplace_back([&, id] { stay(id); });
  while (!begun) std::this_thread::yield();
  Trainee late(coordinator.address(), "c");
  for (int i = 0; i < 2; ++i) {
    const auto outcome = late.step(i == 1);
    ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
    EXPECT_GT(outcome.step, 3u);
    EXPECT_EQ(late.value(), static_cast<float>(outcome.step * (outcome.step + 1) / 2));
    EXPECT_TRUE(late.even());
  }
  EXPECT_TRUE(late.pulled().complete);
  EXPECT_EQ(late.pulled().peers.size(), 2u);
  EXPECT_GT(late.pulled().pulled_bytes, 0);
}

}  // namespace
}  // namespace motley
