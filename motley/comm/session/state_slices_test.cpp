// Sessions whose joiners learn the state item by item while the others' steps go on.
#include "motley/comm/session/state_slices.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_thread_test.hpp"

namespace motley {
namespace {

constexpr std::size_t item_count = 40;

// A parameter and its moment: the first and the second half.
using Items = std::vector<std::vector<float>>;
using Gradient = std::array<float, item_count>;

Items first_items(float value) {
  Items items;
  for (std::size_t i = 0; i < item_count; ++i) items.emplace_back(200 * (i % 5 + 1), value);
  return items;
}

// What a step does to an item. `neighbour`: a program that breaks its word lets it depend on another item.
void update(std::vector<float>& item, float gradient, float neighbour) {
  const std::size_t half = item.size() / 2;
  for (std::size_t j = 0; j < half; ++j) {
    float& moment = item[half + j];
    moment = 0.9F * moment + gradient * static_cast<float>(j % 7 + 1) + neighbour;
    item[j] -= 0.01F * moment;
  }
}

void update(Items& items, std::size_t held, const Gradient& gradient, bool keeps_its_word) {
  for (std::size_t i = 0; i < held; ++i)
    update(items[i], gradient[i], keeps_its_word ? 0 : 1e-3F * items[(i + item_count - 1) % item_count][0]);
}

struct Step {
  SessionOutcome outcome;
  std::vector<std::string> members;
  int contributors = 0;
  bool contributed = false;
  std::size_t held = 0;  // items at its beginning
  Gradient gradient{};
};

class SlicedTrainee {
 public:
  // Who begins the group has the first state; others have something else.
  SlicedTrainee(const std::string& coordinator, const std::string& id, float value, bool keeps_its_word = true)
      : items_(first_items(value)),
        keeps_its_word_(keeps_its_word),
        // Time enough for everything: what keeps slices short is that each is four times the last one at most.
        sync_({.share = 1e6},
              {.count = item_count,
               .save = [this](std::size_t item) { return std::as_bytes(std::span(items_[item])); },
               .place = [this](std::size_t item,
                               std::size_t) { return std::as_writable_bytes(std::span(items_[item])); }}),
        session_(options(coordinator, id)) {}

  // `wish`: to stop after this step, which all members do where one of them wants to.
  Step step(bool wish = false) {
    Step result;
    std::array<float, item_count + 1> sum{};
    result.outcome = session_.run(
        [&](SessionStep& step) {
          for (std::size_t i = 0; i < item_count; ++i)
            sum[i] = step.contributes()
                         ? std::sin(static_cast<float>(step.step * (i + 1)) + static_cast<float>(step.place))
                         : 0;
          sum[item_count] = wish ? 1 : 0;
          result.members.clear();
          for (const Member& member : step.start.epoch.members) result.members.push_back(member.id);
          result.contributors = step.contributors;
          result.contributed = step.contributes();
          result.held = sync_.held();
          return step.communicator.all_reduce(std::as_writable_bytes(std::span(sum)), CollectiveElement::fp32,
                                              {.timeout_s = 20});
        },
        {.timeout_s = 60});
    EXPECT_EQ(result.outcome.status, SessionStatus::committed) << result.outcome.cause;
    for (std::size_t i = 0; i < item_count; ++i) result.gradient[i] = sum[i] / static_cast<float>(result.contributors);
    update(items_, result.held, result.gradient, keeps_its_word_);
    stopped_ = sum[item_count] > 0;
    return result;
  }
  bool stopped() const { return stopped_; }
  const Items& items() const { return items_; }
  const SlicedStateReport& report() const { return sync_.report(); }
  bool leave() { return session_.leave(20); }

 private:
  SessionOptions options(const std::string& coordinator, const std::string& id) {
    SessionOptions result = options_of(coordinator, id);
    result.share_state = std::ref(sync_);
    return result;
  }

  Items items_;
  bool keeps_its_word_;
  bool stopped_ = false;
  SlicedStateSync sync_;
  Session session_;
};

std::int64_t all_bytes() {
  std::int64_t bytes = 0;
  for (const auto& item : first_items(0)) bytes += static_cast<std::int64_t>(item.size() * sizeof(float));
  return bytes;
}

bool has(const Step& step, const std::string& id) { return std::ranges::find(step.members, id) != step.members.end(); }

// Trains until a member wants to stop.
Items stay(const std::string& coordinator, const std::string& id, std::atomic<int>* steps = nullptr,
           bool keeps_its_word = true) {
  SlicedTrainee trainee(coordinator, id, 1, keeps_its_word);
  while (!trainee.stopped() && !::testing::Test::HasFailure()) {
    trainee.step();
    if (steps != nullptr) ++*steps;
  }
  EXPECT_EQ(trainee.report().received_bytes, 0);
  return trainee.items();
}

void wait_for(const std::atomic<int>& steps, int count) {
  while (steps < count && !::testing::Test::HasFailure()) std::this_thread::yield();
}

TEST(StateSlices, AJoinerLearnsWhileTheStepsGoOn) {
  CoordinatorThread coordinator({.minimum_size = 2});
  Items of_a, of_b;
  std::atomic<int> steps = 0;
  {
    std::jthread a([&] { of_a = stay(coordinator.address(), "a", &steps); });
    std::jthread b([&] { of_b = stay(coordinator.address(), "b"); });
    wait_for(steps, 3);
    SlicedTrainee late(coordinator.address(), "late", -5);
    std::size_t held = 0;
    int learning = 0;
    for (Step step = late.step(); !step.contributed; step = late.step()) {
      ASSERT_FALSE(::testing::Test::HasFailure());
      EXPECT_EQ(step.contributors, 2);
      EXPECT_EQ(step.members.size(), 3U);
      EXPECT_EQ(step.outcome.attempts, 1);
      // Not all at once: no step waits for the whole state.
      EXPECT_LT(step.held, held + 3 * item_count / 4);
      EXPECT_GE(step.held, held);
      held = step.held;
      ++learning;
    }
    EXPECT_EQ(held, item_count);
    EXPECT_GE(learning, 6);  // three slices are too few for receiving, and for comparing
    EXPECT_EQ(late.report().received_bytes, all_bytes());
    EXPECT_EQ(late.report().differed, 0U);
    const Step last = late.step(true);
    EXPECT_EQ(last.contributors, 3);
    a.join();
    b.join();
    EXPECT_EQ(late.items(), of_a);
  }
  EXPECT_EQ(of_a, of_b);
}

// A member that gives may die: the others give the rest, and nothing comes twice.
TEST(StateSlices, AMemberThatDiesInTheMiddle) {
  CoordinatorThread coordinator({.minimum_size = 2});
  Items of_a, of_late;
  {
    std::atomic<int> steps = 0;
    std::atomic<bool> dies = false;
    std::jthread a([&] { of_a = stay(coordinator.address(), "a", &steps); });
    std::jthread b([&] {
      SlicedTrainee doomed(coordinator.address(), "b", 1);
      while (!dies && !::testing::Test::HasFailure()) doomed.step();
    });
    wait_for(steps, 3);
    SlicedTrainee late(coordinator.address(), "late", -5);
    Step step = late.step();
    while (step.held < 5) step = late.step();
    ASSERT_FALSE(step.contributed);
    dies = true;
    while (!step.contributed || has(step, "b")) {
      ASSERT_FALSE(::testing::Test::HasFailure());
      step = late.step();
    }
    EXPECT_EQ(late.report().received_bytes, all_bytes());
    EXPECT_EQ(late.report().differed, 0U);
    late.step(true);
    of_late = late.items();
  }
  EXPECT_EQ(of_a, of_late);
}

TEST(StateSlices, ALearnerThatDiesAndTwoAtOnce) {
  CoordinatorThread coordinator({.minimum_size = 2});
  std::map<std::string, Items> items;
  for (const std::string id : {"a", "b", "c", "d"}) items[id];
  {
    std::atomic<int> steps = 0;
    std::jthread a([&] { items["a"] = stay(coordinator.address(), "a", &steps); });
    std::jthread b([&] { items["b"] = stay(coordinator.address(), "b"); });
    wait_for(steps, 3);
    {
      SlicedTrainee doomed(coordinator.address(), "c", -5);
      while (doomed.step().held < 5) ASSERT_FALSE(::testing::Test::HasFailure());
    }
    std::atomic<int> complete = 0;
    const auto learn = [&](const std::string& id) {
      SlicedTrainee late(coordinator.address(), id, -7);
      bool told = false;
      while (!late.stopped() && !::testing::Test::HasFailure()) {
        const Step step = late.step(complete == 2);
        if (step.contributed && !std::exchange(told, true)) {
          ++complete;
          EXPECT_EQ(late.report().received_bytes, all_bytes());
        }
      }
      items[id] = late.items();
    };
    std::jthread c([&] { learn("c"); });
    learn("d");
  }
  for (const auto& [id, of_it] : items) EXPECT_EQ(of_it, items["a"]) << id;
}

// What the program says of itself is not true: the comparison finds it, and the state is right in the end.
TEST(StateSlices, AProgramThatBreaksItsWordIsMended) {
  CoordinatorThread coordinator({.minimum_size = 2});
  Items of_a, of_late;
  {
    std::atomic<int> steps = 0;
    std::jthread a([&] { of_a = stay(coordinator.address(), "a", &steps, false); });
    std::jthread b([&] { stay(coordinator.address(), "b", nullptr, false); });
    wait_for(steps, 3);
    SlicedTrainee late(coordinator.address(), "late", -5, false);
    while (!late.step().contributed) ASSERT_FALSE(::testing::Test::HasFailure());
    EXPECT_GT(late.report().differed, 0U);
    EXPECT_EQ(late.report().received_bytes, 2 * all_bytes());
    late.step(true);
    of_late = late.items();
  }
  EXPECT_EQ(of_a, of_late);
}

// It alone has the state, and gives all of it before it goes.
TEST(StateSlices, TheLastHolderLeaves) {
  CoordinatorThread coordinator;
  Items of_a;
  std::uint64_t left_after = 0;
  std::atomic<int> steps = 0;
  std::atomic<bool> may_leave = false;
  std::jthread a([&] {
    SlicedTrainee leaver(coordinator.address(), "a", 1);
    while (!may_leave && !::testing::Test::HasFailure()) {
      left_after = leaver.step().outcome.step;
      ++steps;
    }
    of_a = leaver.items();
    EXPECT_TRUE(leaver.leave());
  });
  wait_for(steps, 3);
  SlicedTrainee late(coordinator.address(), "late", -5);
  std::map<std::uint64_t, Gradient> gradients;
  Step step = late.step();
  ASSERT_FALSE(step.contributed);
  may_leave = true;
  for (int alone = 0; alone < 3;) {
    ASSERT_FALSE(::testing::Test::HasFailure());
    step = late.step();
    gradients[step.outcome.step] = step.gradient;
    if (step.members.size() == 1) ++alone;
  }
  a.join();
  EXPECT_TRUE(step.contributed);
  for (std::uint64_t n = left_after + 1; n <= step.outcome.step; ++n) update(of_a, item_count, gradients.at(n), true);
  EXPECT_EQ(late.items(), of_a);
}

TEST(StateSlices, AStateOfAnotherShapeIsTheJoinersFault) {
  CoordinatorThread coordinator;
  std::atomic<int> steps = 0;
  std::atomic<bool> done = false;
  std::jthread a([&] {
    SlicedTrainee trainee(coordinator.address(), "a", 1);
    while (!done && !::testing::Test::HasFailure()) {
      trainee.step();
      ++steps;
    }
  });
  wait_for(steps, 3);
  SlicedStateSync sync({}, {.count = 3, .save = {}, .place = {}});
  SessionOptions options = options_of(coordinator.address(), "b");
  options.share_state = std::ref(sync);
  {
    Session session(std::move(options));
    const auto nothing = [](SessionStep&) { return OperationOutcome{}; };
    EXPECT_THROW(session.run(nothing, {.timeout_s = 20}), Error);
  }
  wait_for(steps, steps + 3);  // the others go on
  done = true;
}

TEST(StateSlices, OptionsThatMakeNoSense) {
  EXPECT_THROW(SlicedStateSync({.share = 0}, {.count = 3, .save = {}, .place = {}}), Error);
  EXPECT_THROW(SlicedStateSync({}, {.count = 0, .save = {}, .place = {}}), Error);
}

}  // namespace
}  // namespace motley
