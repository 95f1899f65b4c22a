#include "motley/trainer/step_pace.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace motley {
namespace {

// Three workers that take 20, 30 and 25 ms, after a first step that takes much longer.
class StepPaceTest : public testing::Test {
 protected:
  StepPaceTest() {
    EXPECT_TRUE(pace_.add({2, 3, 2.5}).empty());
    for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(1, 1, 1).empty());
  }
  std::vector<StepPace::Change> add(double a, double b, double c) { return pace_.add({0.02 * a, 0.03 * b, 0.025 * c}); }

  StepPace pace_;
};

TEST_F(StepPaceTest, ATwentiethOfTheSpeedIsKnownByTheFirstWholeStepAndToldOnce) {
  EXPECT_TRUE(add(1, 1.5, 1).empty()) << "the end of the step alone was slow";
  const auto slow = add(1, 20, 1);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].worker, 1U);
  EXPECT_TRUE(slow[0].slow);
  EXPECT_NEAR(slow[0].factor, 10.75, 1e-9);
  for (int step = 0; step < 100; ++step) EXPECT_TRUE(add(1, 20, 1).empty());
  EXPECT_TRUE(add(1, 1, 1).empty());
  const auto fast = add(1, 1, 1);
  ASSERT_EQ(fast.size(), 1U);
  EXPECT_EQ(fast[0].worker, 1U);
  EXPECT_FALSE(fast[0].slow);
}

TEST_F(StepPaceTest, WhatAllTakeIsNobodys) {
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(20, 20, 20).empty());
}

TEST_F(StepPaceTest, ATimesSevenIsNotTold) {
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(1, 7, 1).empty());
}

TEST_F(StepPaceTest, NumbersThatAreNoneAreNotSlow) {
  EXPECT_TRUE(add(1, std::numeric_limits<double>::quiet_NaN(), -1).empty());
}

// The operating system may hold up steps of a millisecond as much.
TEST(StepPace, ShortStepsAreNotTold) {
  StepPace pace;
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(pace.add({1e-3, 1e-3}).empty());
  EXPECT_TRUE(pace.add({1e-3, 40e-3}).empty());
}

TEST(StepPace, OneAloneIsHeldAgainstItself) {
  StepPace pace;
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(pace.add({0.1}).empty());
  EXPECT_EQ(pace.add({2}).size(), 1U);
}

}  // namespace
}  // namespace motley
