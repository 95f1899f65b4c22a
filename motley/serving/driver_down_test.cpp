// A deployment that waits for machines: nothing fits, and requests are held until something does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <mutex>

#include "motley/serving/driver_fixture_test.hpp"

namespace motley {
namespace {

constexpr const char* nothing_fits = "no plan fits the machines that are left";

// Devices come and go: workers start only on those that are there, and plans are over all of them.
class HandMachines {
 public:
  explicit HandMachines(const ServePlan& whole) : whole_(whole), there_(all()) {}

  ServePlan plan(const std::vector<std::string>& devices) const {
    return placed_on(toy_plan({std::vector<int>(devices.size(), 1)}), whole_, devices);
  }
  std::set<std::string> all() const {
    const std::vector<std::string> devices = worker_devices(whole_);
    return {devices.begin(), devices.end()};
  }
  void set(std::set<std::string> there) {
    const std::lock_guard lock(mutex_);
    there_ = std::move(there);
  }

  DriverSetup options() {
    DriverSetup options = fake("step_ms=2");
    options.restart.waits = true;
    options.fleet = std::make_shared<ThoseThatAreThere>(*this);
    options.replan = [this](const ServePlan&, const std::set<std::string>& lost) { return replan(lost); };
    return options;
  }

 private:
  class ThoseThatAreThere final : public Fleet {
   public:
    explicit ThoseThatAreThere(HandMachines& machines) : machines_(machines) {}
    std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting,
                                       const std::vector<std::string>& running, const WorkerReads& reads) override {
      WorkerLoss loss{Error(ErrorCode::peer, "a machine is not there"), {}, true};
      {
        const std::lock_guard lock(machines_.mutex_);
        for (const std::string& device : starting)
          if (!machines_.there_.contains(device)) loss.devices.push_back(device);
      }
      if (!loss.devices.empty()) throw WorkersNotStarted(loss);
      return workers_->begin(starting, running, reads);
    }
    bool is_here() const override { return true; }

   private:
    HandMachines& machines_;
    const std::shared_ptr<Fleet> workers_ = fake_workers();
  };

  std::optional<ServePlan> replan(const std::set<std::string>& lost) {
    std::vector<std::string> left;
    const std::lock_guard lock(mutex_);
    std::ranges::set_difference(there_, lost, std::back_inserter(left));
    return left.empty() ? std::nullopt : std::optional(plan(left));
  }

  const ServePlan& whole_;
  std::mutex mutex_;
  std::set<std::string> there_;
};

class DriverDown : public DriverTest {
 protected:
  bool is_down(const CallingDriver& driver) {
    return wait_until([&] { return driver.status().phase == DeploymentPhase::down; }, 30);
  }
  bool serves_again(const CallingDriver& driver) {
    return wait_until([&] { return driver.status().ready; }, 30);
  }
  static void kill_all_workers(const CallingDriver& driver) {
    for (const WorkerStatus& worker : driver.status().workers) ::kill(worker.process, SIGKILL);
  }

  const ServePlan whole_ = toy_plan({{1, 1}});
  HandMachines machines_{whole_};
};

TEST_F(DriverDown, HoldsRequestsUntilAPlanServesThem) {
  DriverSetup options = machines_.options();
  options.hold_s = 600;
  CallingDriver driver(whole_, options);
  StreamedAnswer early, late;
  driver.generate(ask({1, 2}, 60), early.callback());
  ASSERT_TRUE(early.wait_for_tokens(5));
  machines_.set({});
  kill_all_workers(driver);
  ASSERT_TRUE(is_down(driver));
  EXPECT_TRUE(driver.status().workers.empty());
  EXPECT_FALSE(driver.status().ready);
  EXPECT_FALSE(driver.status().failure);
  driver.generate(ask({3}, 20), late.callback());
  EXPECT_EQ(driver.status().held, 2);

  machines_.set({"box/1"});
  driver.change_plan(machines_.plan({"box/1"}));
  EXPECT_EQ(early.wait(60), FinishReason::length) << early.stop_cause();
  EXPECT_EQ(early.tokens(), expected_tokens({1, 2}, 60));
  EXPECT_EQ(late.wait(60), FinishReason::length) << late.stop_cause();
  EXPECT_EQ(late.tokens(), expected_tokens({3}, 20));
  EXPECT_EQ(driver.status().phase, DeploymentPhase::serving);
  EXPECT_EQ(driver.status().held, 0);
}

TEST_F(DriverDown, AfterAWhileRequestsFailUntilAPlanServes) {
  DriverSetup options = machines_.options();
  options.hold_s = 0.2;
  std::atomic<int> failures = 0;
  CallingDriver driver(whole_, options);
  driver.on_failure([&](const Error&) { ++failures; });
  StreamedAnswer held, again;
  driver.generate(ask({1, 2}, 1000), held.callback());
  ASSERT_TRUE(held.wait_for_tokens(1));
  machines_.set({});
  kill_all_workers(driver);
  EXPECT_EQ(held.wait(30), FinishReason::failed);
  EXPECT_EQ(held.stop_cause(), nothing_fits);
  try {
    driver.generate(ask({3}, 20), [](const GenerateEvent&) {});
    ADD_FAILURE() << "a request is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    EXPECT_STREQ(error.what(), nothing_fits);
    EXPECT_FALSE(error.hint().empty());
  }
  EXPECT_EQ(driver.status().phase, DeploymentPhase::down);
  EXPECT_EQ(driver.status().held, 0);

  machines_.set(machines_.all());
  driver.change_plan(whole_);
  ASSERT_TRUE(serves_again(driver));
  driver.generate(ask({3}, 20), again.callback());
  EXPECT_EQ(again.wait(30), FinishReason::length) << again.stop_cause();
  EXPECT_EQ(again.tokens(), expected_tokens({3}, 20));
  EXPECT_EQ(failures, 0);
}

TEST_F(DriverDown, APlanWithAMachineThatIsNotThereChangesNothing) {
  DriverSetup options = machines_.options();
  std::atomic<bool> told = false;
  options.report = [&](const std::string&, const std::string& detail) {
    if (detail == "no change: a machine is not there") told = true;
  };
  CallingDriver driver(machines_.plan({"box/0"}), options);
  StreamedAnswer answer;
  driver.generate(ask({1}, 300), answer.callback());
  machines_.set({"box/0"});
  driver.change_plan(whole_);
  EXPECT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens({1}, 300));
  EXPECT_TRUE(wait_until([&] { return told.load(); }, 30));
  EXPECT_EQ(driver.status().epoch, 1u);
  EXPECT_TRUE(driver.status().ready);
}

TEST_F(DriverDown, APlanThatDoesNotStartEitherLeavesItDown) {
  DriverSetup options = machines_.options();
  CallingDriver driver(whole_, options);
  StreamedAnswer answer;
  driver.generate(ask({1}, 100), answer.callback());
  machines_.set({});
  kill_all_workers(driver);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(is_down(driver));
    const std::uint64_t epoch = driver.status().epoch;
    driver.change_plan(machines_.plan({"box/1"}));
    ASSERT_TRUE(wait_until([&] { return driver.status().epoch == epoch + 1; }, 30));
  }
  ASSERT_TRUE(is_down(driver));
  machines_.set({"box/1"});
  driver.change_plan(machines_.plan({"box/1"}));
  EXPECT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens({1}, 100));
}

// Who waits for the first plan can bring another.
TEST_F(DriverDown, MayBeDownFromTheStart) {
  machines_.set({});
  CallingDriver driver(whole_, machines_.options());
  EXPECT_EQ(driver.status().phase, DeploymentPhase::down);
  StreamedAnswer answer;
  driver.generate(ask({1}, 20), answer.callback());
  machines_.set({"box/0"});
  driver.change_plan(machines_.plan({"box/0"}));
  EXPECT_EQ(answer.wait(60), FinishReason::length) << answer.stop_cause();
  EXPECT_EQ(answer.tokens(), expected_tokens({1}, 20));
}

TEST_F(DriverDown, MayEndWhileItIsDown) {
  for (const double drain_s : {0.0, 0.1}) {
    StreamedAnswer answer;
    machines_.set(machines_.all());
    {
      CallingDriver driver(whole_, machines_.options());
      machines_.set({});
      driver.generate(ask({1}, 1000), answer.callback());
      kill_all_workers(driver);
      ASSERT_TRUE(is_down(driver));
      if (drain_s > 0) driver.drain(drain_s);
    }
    EXPECT_EQ(answer.wait(0), FinishReason::cancelled);
  }
}

}  // namespace
}  // namespace motley
