#include "motley/planner/train/plan_chain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

ChainDescription example(double budget) {
  ChainDescription chain;
  chain.budget_bytes = budget;
  chain.sites = {{"layers",
                  3,
                  {{.name = "fast", .time_s = 1, .bytes = 4, .layout = "a"},
                   {.name = "thin", .time_s = 2, .bytes = 3, .layout = "b"}}}};
  chain.layouts = {"a", "b"};
  chain.layout_change_s = {{0, 0.3}, {0.3, 0}};
  return chain;
}

TEST(PlanChain, TheWorkedExampleIsSoundAndOptimal) {
  const ChainOutcome outcome = plan_chain(example(10), {.front = ChainFrontWanted::yes});
  ASSERT_TRUE(outcome.plan);
  EXPECT_TRUE(verify(*outcome.plan).empty());
  EXPECT_NEAR(outcome.plan->predicted.time_s, 5.3, 1e-12);
  EXPECT_EQ(outcome.plan->predicted.bytes, 10);
  EXPECT_EQ(outcome.plan->search.status, SearchStatus::optimal);
  EXPECT_EQ(outcome.plan->search.gap, 0);
  EXPECT_NEAR(*outcome.plan->search.bound, 5.3, 1e-12);
  EXPECT_EQ(outcome.front.size(), 4u);  // 9, 10, 11 and 12 bytes
  EXPECT_EQ(outcome.front.back().time_s, 3);
}

TEST(PlanChain, WhatDoesNotFitIsNamed) {
  const ChainOutcome outcome = plan_chain(example(8), {});
  EXPECT_FALSE(outcome.plan);
  EXPECT_THAT(outcome.reason, testing::HasSubstr("sites[0] (layers), number 3 of 3"));
  EXPECT_THAT(outcome.hint, testing::HasSubstr("budget_bytes = 9"));
  EXPECT_THAT(plan_chain(example(2.5), {}).reason, testing::HasSubstr("alone needs at least 3 bytes"));
}

// Time and exchange add up; what a site takes for a while counts once, where it is largest.
TEST(PlanChain, ExchangeAndPassingBytesCount) {
  ChainDescription chain;
  chain.budget_bytes = 12;
  chain.sites = {{"a", 2, {{.name = "only", .time_s = 1, .sync_s = 2, .bytes = 3, .transient_bytes = 4, .layout = ""}}},
                 {"b", 1, {{.name = "only", .time_s = 0.5, .bytes = 1, .transient_bytes = 5, .layout = ""}}}};
  const ChainOutcome outcome = plan_chain(chain, {});
  ASSERT_TRUE(outcome.plan);
  EXPECT_NEAR(outcome.plan->predicted.time_s, 6.5, 1e-12);
  EXPECT_EQ(outcome.plan->predicted.bytes, 12);
  EXPECT_NEAR(*outcome.plan->search.bound, 6.5, 1e-12);
  chain.budget_bytes = 11;
  EXPECT_FALSE(plan_chain(chain, {}).plan);
}

}  // namespace
}  // namespace motley
