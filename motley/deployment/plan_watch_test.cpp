#include "motley/deployment/plan_watch.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <condition_variable>
#include <future>

#include "motley/deployment/machines_test.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Names = std::set<std::string>;
using Pairs = std::vector<std::pair<std::string, std::string>>;

// A plan over the devices of "a" and "b" serves; a search promises twice its tokens, if no test says otherwise.
class PlanWatchTest : public ::testing::Test {
 protected:
  PlanWatchTest() {
    status_.phase = DeploymentPhase::serving;
    status_.epoch = 1;
    status_.plan = std::make_shared<const ServePlan>(toy_pipeline(machines_.offered({}), {"a/0", "b/0"}));
    promise(2);
  }

  void promise(double times) { search_.promise(times * plans_.tokens_per_s(*status_.plan)); }
  RunningPlan running() {
    return {.status =
                [this] {
                  const std::lock_guard lock(mutex_);
                  return status_;
                },
            .change =
                [this](ServePlan plan) {
                  const std::lock_guard lock(mutex_);
                  if (refuses_) throw input_error("the plan is for another model");
                  changes_.push_back(std::move(plan));
                  changed_.notify_all();
                }};
  }
  double look(double after_s, bool changed = false) {
    status_.uptime_s += after_s;
    return watch_.look(changed);
  }
  Names last_change() const { return changes_.empty() ? Names() : machines_of(changes_.back()); }

  ToyMachines machines_{{{"a", 1}, {"b", 1}}};
  ToySearch search_;
  ToldLines told_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DeploymentStatus status_;
  std::vector<ServePlan> changes_;
  bool refuses_ = false;
  SparePlans plans_{std::ref(search_), {}, {}, "a", machines_, std::ref(told_)};
  PlanWatch watch_{machines_, plans_, running(), true, -1, std::ref(told_)};
};

TEST_F(PlanWatchTest, AMachineThatJoinsIsMeasuredAndPlannedInOnceItHasSettled) {
  machines_.join("c");
  EXPECT_EQ(look(10, true), 1);
  EXPECT_THAT(changes_, IsEmpty());
  look(1);
  EXPECT_EQ(last_change(), (Names{"a", "b", "c"}));
  EXPECT_THAT(machines_.measurements(), Contains(Names{"b", "c"}));
  EXPECT_THAT(told_.lines(), Contains(StartsWith("links: b to c: ")));
  EXPECT_THAT(told_.lines(), Contains(HasSubstr("are predicted over 3 machines, ")));
  look(100);
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(PlanWatchTest, FurtherChangesPutItOff) {
  machines_.join("c");
  for (int i = 0; i < 5; ++i) look(0.9, true);
  EXPECT_THAT(changes_, IsEmpty());
  look(1);
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(PlanWatchTest, AnotherPlanThatPaysLessThanATenthMoreIsNotWorthAMove) {
  machines_.join("c");
  promise(1.09);
  look(10, true);
  look(1);
  EXPECT_GE(search_.searches(), 1u);
  EXPECT_THAT(changes_, IsEmpty());
  promise(1.11);
  look(10, true);
  look(1);
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(PlanWatchTest, AMachineThatWantsToLeaveIsPlannedAroundAtOnceWhateverThatCosts) {
  machines_.ask_to_leave("b");
  promise(0.1);
  look(10, true);
  EXPECT_EQ(last_change(), Names{"a"});
}

TEST_F(PlanWatchTest, OneThatThePlanDoesNotUseLeavesWithoutHaste) {
  machines_.join("c");
  machines_.ask_to_leave("c");
  promise(0.1);
  look(10, true);
  look(1);
  EXPECT_THAT(changes_, IsEmpty());
}

TEST_F(PlanWatchTest, ADeviceThatIsOutOfServiceIsPlannedAroundAtOnceAndComesBackWhereThatPays) {
  machines_.set_out_of_service("b/0", "the driver has lost the GPU");
  promise(0.1);
  look(10, true);
  EXPECT_EQ(last_change(), Names{"a"});
  status_.plan = std::make_shared<const ServePlan>(changes_.back());
  machines_.set_out_of_service("b/0", "");
  promise(2);
  EXPECT_EQ(look(10, true), 1);
  EXPECT_EQ(changes_.size(), 1u);
  look(1);
  EXPECT_EQ(last_change(), (Names{"a", "b"}));
}

TEST_F(PlanWatchTest, OneThatThePlanDoesNotUseIsOutOfServiceWithoutHaste) {
  machines_.join("c");
  machines_.set_out_of_service("c/0", "the driver has lost the GPU");
  promise(0.1);
  look(10, true);
  look(1);
  EXPECT_THAT(changes_, IsEmpty());
}

TEST_F(PlanWatchTest, WhereNothingFitsThatIsSaidAndThePlanGoesOn) {
  machines_.ask_to_leave("b");
  search_.fail();
  look(10, true);
  EXPECT_THAT(changes_, IsEmpty());
  EXPECT_THAT(told_.lines(), Contains("plan: nothing fits the members that are there: too little memory"));
}

TEST_F(PlanWatchTest, APlanThatIsRefusedIsReported) {
  machines_.ask_to_leave("b");
  refuses_ = true;
  look(10, true);
  EXPECT_THAT(told_.lines(), Contains("plan: no change: the plan is for another model"));
}

TEST_F(PlanWatchTest, WhileAnotherPlanTakesEffectItWaits) {
  machines_.ask_to_leave("b");
  status_.phase = DeploymentPhase::loading;
  EXPECT_EQ(look(10, true), 1);
  EXPECT_EQ(search_.searches(), 0u);
  status_.phase = DeploymentPhase::serving;
  look(1);
  EXPECT_EQ(last_change(), Names{"a"});
}

TEST_F(PlanWatchTest, WhereNothingIsServedItTriesAgainAfterAMinute) {
  status_.phase = DeploymentPhase::down;
  promise(0.5);
  for (int s = 0; s < 60; ++s) look(1);
  EXPECT_THAT(changes_, IsEmpty());
  look(1);
  EXPECT_EQ(changes_.size(), 1u);
  EXPECT_THAT(machines_.measurements(), IsEmpty());  // requests wait
}

TEST_F(PlanWatchTest, ASlowDeviceIsPlannedWithAsSlowUntilItReturns) {
  const auto speed_of_b = [&] { return changes_.back().cluster.type_of(1).memory_bandwidth_bytes_per_s; };
  const double full = machines_.offered({}).type_of(1).memory_bandwidth_bytes_per_s;
  machines_.measure_links(0, -1, {"a", "b"});
  WorkerStatus b;
  b.device = "b/0";
  status_.workers = {b};
  status_.slow = {{"b/0", 20}};
  for (int s = 0; s < 2; ++s) look(1);
  EXPECT_THAT(changes_, IsEmpty());
  look(1);
  EXPECT_EQ(changes_.size(), 1u);
  EXPECT_DOUBLE_EQ(speed_of_b(), full / 20);
  status_.slow = {};
  for (int s = 0; s < 61; ++s) look(1);
  EXPECT_EQ(changes_.size(), 2u);
  EXPECT_DOUBLE_EQ(speed_of_b(), full);
}

TEST_F(PlanWatchTest, SparePlansAreMadeForEachPlanThatServesAndAfterEachChange) {
  std::condition_variable searched;
  std::mutex mutex;
  std::size_t searches = 0;
  search_.on_search([&](std::size_t number) {
    const std::lock_guard lock(mutex);
    searches = number;
    searched.notify_all();
  });
  const auto wait_for = [&](std::size_t number) {
    std::unique_lock lock(mutex);
    return searched.wait_for(lock, std::chrono::seconds(30), [&] { return searches >= number; });
  };
  look(1);
  EXPECT_TRUE(wait_for(2));  // without a, without b
  look(1);
  status_.epoch = 2;
  look(1);
  EXPECT_TRUE(wait_for(4));
  promise(1);
  look(1, true);  // then one search over all, which does not pay, and spare plans again
  look(1);
  look(1);
  EXPECT_TRUE(wait_for(7));
  EXPECT_EQ(search_.searches(), 7u);
}

TEST_F(PlanWatchTest, ItsThreadHearsOfChangesAndEndsWhileSparePlansAreMade) {
  std::promise<void> under_way;
  std::promise<void> go_on;
  search_.on_search([&, gate = go_on.get_future().share()](std::size_t number) {
    if (number == 1) under_way.set_value();
    gate.wait();
  });
  std::optional<PlanWatchThread> thread;
  thread.emplace(machines_, plans_, running(), true, std::ref(told_));
  under_way.get_future().wait();  // spare plans, after its first look
  machines_.ask_to_leave("b");
  go_on.set_value();
  {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !changes_.empty(); }));
  }
  thread.reset();
  EXPECT_EQ(last_change(), Names{"a"});
}

TEST(UnmeasuredPairs, AreThoseOfMachinesOfWhichNoLinkIsKnown) {
  EXPECT_EQ(unmeasured_pairs({"a", "b", "c"}, {}), (Pairs{{"a", "b"}, {"a", "c"}, {"b", "c"}}));
  const std::vector<MachineLink> known{{"a", "b", 1e-4, 1e8}, {"b", "a", 1e-4, 1e8}};
  EXPECT_EQ(unmeasured_pairs({"a", "b", "c"}, known), (Pairs{{"a", "c"}, {"b", "c"}}));
  EXPECT_EQ(unmeasured_pairs({"a", "b"}, known), Pairs{});
  EXPECT_EQ(unmeasured_pairs({"a"}, {}), Pairs{});
}

}  // namespace
}  // namespace motley
