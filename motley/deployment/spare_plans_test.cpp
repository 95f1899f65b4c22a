#include "motley/deployment/spare_plans.hpp"

#include <gmock/gmock.h>

#include "motley/deployment/machines_test.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::stop_token never_stopped;

class SparePlansTest : public ::testing::Test {
 protected:
  SparePlans plans_with(std::optional<Cluster> cluster = {}, const std::vector<std::string>& without = {}) {
    return {std::ref(search_), std::move(cluster), without, "a", machines_, std::ref(told_)};
  }

  ToyMachines machines_{{{"a", 1}, {"b", 1}, {"c", 1}}};
  ToySearch search_;
  ToldLines told_;
};

TEST_F(SparePlansTest, TheFirstPlanIsOverAllThatAreThereButForWhatIsLeftOut) {
  const SparePlans plans = plans_with({}, {"b/0"});
  EXPECT_EQ(machines_of(*plans.plan(true).plan), (std::set<std::string>{"a", "c"}));
  EXPECT_EQ(search_.last_cluster().description.driver->machine, "a");
}

TEST_F(SparePlansTest, OfADescribedClusterThatAreUsedWhichAreThere) {
  const SparePlans plans = plans_with(toy_machines({{"a", 1}, {"b", 1}, {"d", 2}}));
  EXPECT_EQ(machines_of(*plans.plan(true).plan), (std::set<std::string>{"a", "b"}));
  EXPECT_THAT(search_.last_excluded(), ElementsAre("d/0", "d/1"));
}

TEST_F(SparePlansTest, WithNoMachinesThereIsNoPlan) {
  for (const char* name : {"a", "b", "c"}) machines_.lose(name);
  const ServeOutcome outcome = plans_with().plan(true);
  EXPECT_FALSE(outcome.plan);
  EXPECT_EQ(outcome.reason, "no machine is left");
  EXPECT_EQ(search_.searches(), 0u);
}

// The driver may hear of the workers' deaths before the members hear that the machine is gone, and the other way round.
TEST_F(SparePlansTest, AtALossTheSparePlanIsTakenHoweverItShows) {
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  plans.make_spares(before, {}, never_stopped);
  const std::size_t searches = search_.searches();
  EXPECT_EQ(searches, 4u);
  const auto workers_first = plans.after_loss(before, {"c/0"});
  machines_.lose("c");
  const auto machine_first = plans.after_loss(before, {"c/0"});
  const auto left = plans.plan_again(before);  // it has left by itself
  EXPECT_EQ(search_.searches(), searches);
  for (const auto& plan : {workers_first, machine_first, left.plan}) {
    ASSERT_TRUE(plan);
    EXPECT_EQ(machines_of(*plan), (std::set<std::string>{"a", "b"}));
  }
  EXPECT_THAT(told_.lines(), ElementsAre(StartsWith("plan: without what was lost, as prepared: "),
                                         StartsWith("plan: without what was lost, as prepared: ")));
}

TEST_F(SparePlansTest, ADeviceThatIsOutOfServiceIsInNoPlanUntilItReturns) {
  machines_.join("d");
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  plans.make_spares(before, {}, never_stopped);
  const std::size_t searches = search_.searches();
  machines_.set_out_of_service("c/0", "the driver has lost the GPU");
  const std::set<std::string> others{"a", "b", "d"};
  EXPECT_EQ(machines_of(*plans.plan_again(before).plan), others);
  EXPECT_EQ(machines_of(*plans.after_loss(before, {"c/0"})), others);
  EXPECT_EQ(search_.searches(), searches) << "the spare plan for its loss serves";
  EXPECT_EQ(machines_of(*plans.after_loss(before, {"d/0"})), (std::set<std::string>{"a", "b"}));
  machines_.set_out_of_service("c/0", "");
  EXPECT_EQ(machines_of(*plans.plan_again(before).plan), (std::set<std::string>{"a", "b", "c", "d"}));
}

TEST_F(SparePlansTest, SparesOfAnotherPlanOrOtherMachinesAreNotTaken) {
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  plans.make_spares(before, {}, never_stopped);
  std::size_t searches = search_.searches();
  const ServePlan another = toy_pipeline(before.cluster, {"c/0", "a/0", "b/0"});
  EXPECT_TRUE(plans.after_loss(another, {"c/0"}));
  EXPECT_EQ(search_.searches(), ++searches);
  plans.set_slow({{"b/0", 4}});
  EXPECT_TRUE(plans.after_loss(before, {"c/0"}));
  EXPECT_EQ(search_.searches(), ++searches);
  plans.set_slow({});
  machines_.join("d");
  EXPECT_TRUE(plans.after_loss(before, {"c/0"}));
  EXPECT_EQ(search_.searches(), ++searches);
  EXPECT_THAT(told_.lines(), ::testing::Each(StartsWith("plan: without what was lost: ")));
}

TEST_F(SparePlansTest, NewSparesTakeThePlaceOfThoseBefore) {
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  plans.make_spares(before, {}, never_stopped);
  EXPECT_EQ(plans.losses().size(), 3u);
  const ServePlan after = *plans.after_loss(before, {"c/0"});
  plans.make_spares(after, {"c/0"}, never_stopped);
  EXPECT_EQ(plans.losses().size(), 2u);
  const std::size_t searches = search_.searches();
  EXPECT_TRUE(plans.after_loss(after, {"b/0", "c/0"}));
  EXPECT_EQ(search_.searches(), searches);
  EXPECT_TRUE(plans.after_loss(before, {"c/0"}));
  EXPECT_EQ(search_.searches(), searches + 1);
}

TEST_F(SparePlansTest, AStopEndsTheMakingAfterThePlanUnderWay) {
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  std::stop_source stop;
  search_.on_search([&](std::size_t number) {
    if (number == 3) stop.request_stop();
  });
  plans.make_spares(before, {}, stop.get_token());
  EXPECT_EQ(plans.losses().size(), 2u);
}

TEST_F(SparePlansTest, WhereNothingFitsAfterALossThatIsAnAnswer) {
  SparePlans plans = plans_with();
  const ServePlan before = *plans.plan(true).plan;
  search_.fail();
  plans.make_spares(before, {}, never_stopped);
  for (const LossImpact& loss : plans.losses()) EXPECT_FALSE(loss.rest);
  EXPECT_FALSE(plans.after_loss(before, {"c/0"}));
  EXPECT_THAT(told_.lines(), IsEmpty());
}

TEST_F(SparePlansTest, WhatAPlanBringsGoesByTheSpeedsThatAreKnownNow) {
  SparePlans plans = plans_with();
  ServePlan plan = *plans.plan(true).plan;
  const double before = plans.tokens_per_s(plan);
  EXPECT_GT(before, 0);
  plans.set_slow({{"c/0", 10}});
  EXPECT_LT(plans.tokens_per_s(plan), before / 2);
  machines_.lose("c");
  plan.predicted.tokens_per_s = 17;  // nothing is known of its devices now
  EXPECT_EQ(plans.tokens_per_s(plan), 17);
}

TEST(MachineLinkText, SaysBothEndsAndWhatWasMeasured) {
  EXPECT_EQ(describe(MachineLink{"a", "b", 2e-4, 125e6}), "a to b: 200 us, 119 MiB/s");
}

}  // namespace
}  // namespace motley
