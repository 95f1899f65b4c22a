#include "motley/trainer/step_speed.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace motley {
namespace {

// Three workers that take 20, 30 and 25 ms, after a first step that takes much longer.
class StepSpeedTest : public testing::Test {
 protected:
  StepSpeedTest() {
    EXPECT_TRUE(speed_.add({2, 3, 2.5}).empty());
    for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(1, 1, 1).empty());
  }
  std::vector<StepSpeed::Change> add(double a, double b, double c) {
    return speed_.add({0.02 * a, 0.03 * b, 0.025 * c});
  }

  StepSpeed speed_;
};

TEST_F(StepSpeedTest, ATwentiethOfTheSpeedIsKnownByTheFirstWholeStepAndToldOnce) {
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

TEST_F(StepSpeedTest, WhatAllTakeIsNobodys) {
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(20, 20, 20).empty());
}

TEST_F(StepSpeedTest, ATimesSevenIsNotTold) {
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(add(1, 7, 1).empty());
}

TEST_F(StepSpeedTest, NumbersThatAreNoneAreNotSlow) {
  EXPECT_TRUE(add(1, std::numeric_limits<double>::quiet_NaN(), -1).empty());
}

// The operating system may hold up steps of a millisecond as much.
TEST(StepSpeed, ShortStepsAreNotTold) {
  StepSpeed speed;
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(speed.add({1e-3, 1e-3}).empty());
  EXPECT_TRUE(speed.add({1e-3, 40e-3}).empty());
}

TEST(StepSpeed, OneAloneIsHeldAgainstItself) {
  StepSpeed speed;
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(speed.add({0.1}).empty());
  EXPECT_EQ(speed.add({2}).size(), 1U);
}

}  // namespace
}  // namespace motley
