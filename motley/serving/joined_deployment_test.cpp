// Over loopback, with agents that a test writes and a search that it answers.
#include "motley/serving/joined_deployment.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "motley/fleet/gathering_fixture_test.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// A driver that serves a plan, as far as its watch sees it, and the next one as soon as it is asked for.
class HandGenerator final : public Generator {
 public:
  explicit HandGenerator(ServePlan plan) { serves(std::move(plan)); }
  std::uint64_t generate(GenerateRequest) override { return 0; }
  void cancel(std::uint64_t) override {}
  DriverStatus status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  void change_plan(ServePlan plan) override {
    serves(plan);
    asked_.set_value(std::move(plan));
  }
  std::future<ServePlan> asked() { return asked_.get_future(); }

 private:
  void serves(ServePlan plan) {
    const std::lock_guard lock(mutex_);
    status_.phase = DeploymentPhase::serving;
    status_.plan = std::make_shared<const ServePlan>(std::move(plan));
    ++status_.epoch;
  }

  mutable std::mutex mutex_;
  DriverStatus status_;
  std::promise<ServePlan> asked_;
};

class JoinedDeploymentTest : public GatheringFixture {
 protected:
  JoinedDeploymentTest() { write(file_of(small_header, std::string(28, 'x'))); }

  JoinedDeployment* deploy(JoinedDeploymentOptions options = {}) {
    options.search = [this](const Cluster& cluster, const std::vector<std::string>& excluded, bool) {
      const std::lock_guard lock(mutex_);
      searched_.clear();
      for (const Device& device : cluster.devices)
        if (std::ranges::find(excluded, device.name) == excluded.end()) searched_.push_back(device.name);
      return answer_;
    };
    deployment_.emplace(std::make_unique<HandStore>(store_), gathered(), std::move(options), events_);
    return &*deployment_;
  }
  GatheringOptions gathered() {
    GatheringOptions gathered = options();
    gathered.report = std::ref(events_);
    return gathered;
  }
  // Its first plan, once a machine of this name has joined.
  ServePlan planned(JoinedDeployment& deployment, const std::string& name = "box", std::size_t devices = 2) {
    auto plan = std::async(std::launch::async, [&] { return deployment.first_plan(); });
    EXPECT_TRUE(tells("waiting: "));
    agents_.push_back(joined(invitations_.at(0), name, devices));
    return plan.get();
  }
  static ServeOutcome fits(ServePlan plan) { return {.plan = std::move(plan), .reason = {}, .hint = {}, .front = {}}; }

  EventLog events_{[this](const Event& event) { told_(event.what, event.detail); }};
  std::mutex mutex_;
  std::vector<std::string> searched_;  // guarded
  ServeOutcome answer_ = fits(toy_plan({{1, 1}}));
  std::optional<JoinedDeployment> deployment_;
  std::vector<std::unique_ptr<HandAgent>> agents_;  // gone before it ends, which would wait for them
};

TEST_F(JoinedDeploymentTest, TheFirstPlanIsMadeOverTheMachinesThatHaveCome) {
  const auto deployment = deploy({.without = {"box/1"}});
  EXPECT_EQ(planned(*deployment).stages, answer_.plan->stages);
  EXPECT_THAT(searched_, ElementsAre("box/0"));
  EXPECT_THAT(told_.lines(), Contains("waiting: for 1 machine"));
}

TEST_F(JoinedDeploymentTest, APlanThatWasMadeBeforeWaitsForItsMachines) {
  const ServePlan plan = toy_plan({{1}});
  const auto deployment = deploy({.plan = plan});
  EXPECT_EQ(planned(*deployment).stages, plan.stages);
  EXPECT_THAT(told_.lines(), Contains("waiting: for box"));
  EXPECT_THAT(told_.lines(), Contains("links: are measured, one pair after the other"));
  EXPECT_TRUE(searched_.empty());
}

TEST_F(JoinedDeploymentTest, WhatCannotBePlannedIsAnError) {
  answer_ = {.plan = {}, .reason = "no room", .hint = "add a machine", .front = {}};
  const auto deployment = deploy();
  EXPECT_THAT([&] { planned(*deployment); }, ThrowsMessage<Error>("does not fit: no room"));
}

TEST_F(JoinedDeploymentTest, ADeviceThatIsToBeLeftOutIsThere) {
  const auto deployment = deploy({.without = {"box/7"}});
  EXPECT_THAT([&] { planned(*deployment); },
              ThrowsMessage<Error>(StartsWith("--without \"box/7\" is not a device of a machine that has joined")));
}

TEST_F(JoinedDeploymentTest, ALossIsPlannedAround) {
  const auto deployment = deploy();
  const ServePlan before = planned(*deployment);
  answer_ = fits(toy_plan({{1}}));
  const auto after = deployment->replan()(before, {"box/1"});
  ASSERT_TRUE(after);
  EXPECT_EQ(after->stages, answer_.plan->stages);
  EXPECT_THAT(searched_, ElementsAre("box/0"));
  EXPECT_THAT(told_.lines(), Contains(StartsWith("plan: without what was lost: ")));
  EXPECT_EQ(deployment->restart().deaths, 3);
  EXPECT_TRUE(deployment->restart().waits);
}

TEST_F(JoinedDeploymentTest, OperatorsAreToldOfItsMachines) {
  const auto deployment = deploy();
  planned(*deployment);
  ASSERT_EQ(deployment->machines(), deployment);
  const Value told = deployment->machines()->describe();
  const Value& box = told.find("members")->as_array().at(0);
  EXPECT_EQ(box.find("name")->as_string(), "box");
  EXPECT_EQ(box.find("devices")->as_array().at(1).find("device")->as_string(), "box/1");
  EXPECT_EQ(box.find("devices")->as_array().at(1).find("memory_bytes")->as_number(), 1 << 20);
  EXPECT_TRUE(told.find("if_lost")->as_array().empty());
  EXPECT_EQ(told.find("events")->as_array().size(), events_.newest().size());
}

TEST_F(JoinedDeploymentTest, OperatorsSendMachinesAwayAndShowNewLinks) {
  const auto deployment = deploy();
  planned(*deployment);
  EXPECT_TRUE(deployment->drain("box", false).empty());
  EXPECT_THAT(told_.lines(), Contains("leaving: box, as asked"));
  EXPECT_THAT([&] { deployment->drain("attic", false); }, ThrowsMessage<Error>(HasSubstr("no machine called")));
  EXPECT_EQ(deployment->invite(false, 60), 60);
  EXPECT_EQ(invitations_.size(), 2u);
  EXPECT_TRUE(deployment->drain("box", true).empty());
  EXPECT_TRUE(agents_[0]->has_ended());
  EXPECT_EQ(invitations_.size(), 3u);
}

TEST_F(JoinedDeploymentTest, WhileItServesAMachineThatWantsToLeaveBringsAnotherPlan) {
  const auto deployment = deploy();
  HandGenerator driver(planned(*deployment));
  auto asked = driver.asked();
  agents_.push_back(joined(invitations_[0], "attic"));
  answer_ = fits(toy_plan({{1, 1}}, 1024, "attic"));
  deployment->watch(driver);
  deployment->drain("box", false);
  ASSERT_EQ(asked.wait_until(soon()), std::future_status::ready);
  EXPECT_EQ(asked.get().stages, answer_.plan->stages);
  deployment->stop_watching();
}

TEST_F(JoinedDeploymentTest, WhileItServesADeviceThatIsOutOfServiceBringsAnotherPlan) {
  const auto deployment = deploy();
  HandGenerator driver(planned(*deployment));
  auto asked = driver.asked();
  answer_ = fits(toy_plan({{1}}));
  deployment->watch(driver);
  agents_[0]->send(DeviceState{"box/1", "the driver has lost the GPU"});
  ASSERT_EQ(asked.wait_until(soon()), std::future_status::ready);
  EXPECT_EQ(asked.get().stages, answer_.plan->stages);
  deployment->stop_watching();
  const Value told = deployment->describe();
  const Value::Array& devices = told.find("members")->as_array().at(0).find("devices")->as_array();
  EXPECT_TRUE(devices.at(0).find("out_of_service")->is_null());
  EXPECT_EQ(devices.at(1).find("out_of_service")->as_string(), "the driver has lost the GPU");
}

TEST_F(JoinedDeploymentTest, WhereAnotherDriverHasItTheEndSaysSo) {
  const auto deployment = deploy();
  planned(*deployment);
  store_.taken = true;
  EXPECT_THROW(deployment->end(), StoreFenced);
  EXPECT_TRUE(store_.kept);
}

}  // namespace
}  // namespace motley
