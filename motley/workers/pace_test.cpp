#include "motley/workers/pace.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// Steps until their computing takes so long.
void compute(Pace& pace, double all_s, double step_s, double believed_s = 0.01, std::int64_t tokens = 16) {
  for (double sum = 0; sum < all_s; sum += step_s) pace.add(tokens, believed_s, step_s);
}

TEST(Pace, ASteadyDeviceIsNotSlowHoweverFarTheCostModelIsOff) {
  Pace pace;
  compute(pace, 10, 0.1);
  EXPECT_FALSE(pace.slow());
  EXPECT_NEAR(pace.factor(), 1, 1e-9);
}

TEST(Pace, ATwentiethOfTheSpeedIsSeenAfterTwoSecondsOfIt) {
  Pace pace;
  compute(pace, 10, 0.005);
  compute(pace, 1.5, 0.1);
  EXPECT_FALSE(pace.slow());
  compute(pace, 0.6, 0.1);
  EXPECT_TRUE(pace.slow());
  EXPECT_NEAR(pace.factor(), 20, 1);
  compute(pace, 100, 0.1);  // it does not become usual
  EXPECT_TRUE(pace.slow());
  EXPECT_NEAR(pace.factor(), 20, 1e-6);
  compute(pace, 4, 0.005);
  EXPECT_FALSE(pace.slow());
}

TEST(Pace, WhatIsThreeTimesSlowerIsNotSlowAndThenIsUsual) {
  Pace pace;
  compute(pace, 10, 0.01);
  compute(pace, 10, 0.03);
  EXPECT_FALSE(pace.slow());
}

TEST(Pace, OneLongStepIsNoTrendUnlessItTakesFourSeconds) {
  Pace pace;
  compute(pace, 3, 0.01);
  pace.add(16, 0.01, 3);
  EXPECT_FALSE(pace.slow());
  compute(pace, 0.1, 0.01);
  EXPECT_FALSE(pace.slow());
  pace.add(16, 0.01, 4);
  EXPECT_TRUE(pace.slow());
}

TEST(Pace, StepsOfANewSizeSayNothing) {
  Pace pace;
  compute(pace, 2, 0.01);
  for (int i = 0; i < 20; ++i) pace.add(512, 0.32, 10);
  EXPECT_FALSE(pace.slow());
  EXPECT_NEAR(pace.factor(), 1, 1e-9);
}

TEST(Pace, WhatCannotBeIsPassedOver) {
  Pace pace;
  compute(pace, 2, 0.01);
  pace.add(0, 0.01, 9);
  pace.add(16, 0, 9);
  pace.add(16, 0.01, -9);
  pace.add(16, 0.01, INFINITY);
  EXPECT_NEAR(pace.factor(), 1, 1e-9);
}

TEST(SlowDevices, OneThatIsSlowAloneIsNamed) {
  std::map<std::string, Pace> paces;
  for (const char* device : {"a/0", "b/0", "c/0"}) compute(paces[device], 3, 0.01);
  compute(paces["b/0"], 3, 0.2);
  const auto slow = slow_devices(paces);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_NEAR(slow.at("b/0"), 20, 1e-6);
  paces["b/0"].rest();
  EXPECT_TRUE(slow_devices(paces).empty());
}

TEST(SlowDevices, WhereAllBecomeSlowerNobodyIsToBlame) {
  std::map<std::string, Pace> paces;
  for (const char* device : {"a/0", "b/0", "c/0"}) {
    compute(paces[device], 3, 0.01);
    compute(paces[device], 3, 0.06);
  }
  EXPECT_TRUE(slow_devices(paces).empty());
}

}  // namespace
}  // namespace motley
