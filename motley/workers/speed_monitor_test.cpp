#include "motley/workers/speed_monitor.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// Steps until their computing takes so long.
void compute(SpeedMonitor& speed, double all_s, double step_s, double believed_s = 0.01, std::int64_t tokens = 16) {
  for (double sum = 0; sum < all_s; sum += step_s) speed.add(tokens, believed_s, step_s);
}

TEST(SpeedMonitor, ASteadyDeviceIsNotSlowHoweverFarTheCostModelIsOff) {
  SpeedMonitor speed;
  compute(speed, 10, 0.1);
  EXPECT_FALSE(speed.slow());
  EXPECT_NEAR(speed.factor(), 1, 1e-9);
}

TEST(SpeedMonitor, ATwentiethOfTheSpeedIsSeenAfterTwoSecondsOfIt) {
  SpeedMonitor speed;
  compute(speed, 10, 0.005);
  compute(speed, 1.5, 0.1);
  EXPECT_FALSE(speed.slow());
  compute(speed, 0.6, 0.1);
  EXPECT_TRUE(speed.slow());
  EXPECT_NEAR(speed.factor(), 20, 1);
  compute(speed, 100, 0.1);  // it does not become usual
  EXPECT_TRUE(speed.slow());
  EXPECT_NEAR(speed.factor(), 20, 1e-6);
  compute(speed, 4, 0.005);
  EXPECT_FALSE(speed.slow());
}

TEST(SpeedMonitor, WhatIsThreeTimesSlowerIsNotSlowAndThenIsUsual) {
  SpeedMonitor speed;
  compute(speed, 10, 0.01);
  compute(speed, 10, 0.03);
  EXPECT_FALSE(speed.slow());
}

TEST(SpeedMonitor, OneLongStepIsNoTrendUnlessItTakesFourSeconds) {
  SpeedMonitor speed;
  compute(speed, 3, 0.01);
  speed.add(16, 0.01, 3);
  EXPECT_FALSE(speed.slow());
  compute(speed, 0.1, 0.01);
  EXPECT_FALSE(speed.slow());
  speed.add(16, 0.01, 4);
  EXPECT_TRUE(speed.slow());
}

TEST(SpeedMonitor, StepsOfANewSizeSayNothing) {
  SpeedMonitor speed;
  compute(speed, 2, 0.01);
  for (int i = 0; i < 20; ++i) speed.add(512, 0.32, 10);
  EXPECT_FALSE(speed.slow());
  EXPECT_NEAR(speed.factor(), 1, 1e-9);
}

TEST(SpeedMonitor, WhatCannotBeIsPassedOver) {
  SpeedMonitor speed;
  compute(speed, 2, 0.01);
  speed.add(0, 0.01, 9);
  speed.add(16, 0, 9);
  speed.add(16, 0.01, -9);
  speed.add(16, 0.01, INFINITY);
  EXPECT_NEAR(speed.factor(), 1, 1e-9);
}

TEST(SlowDevices, OneThatIsSlowAloneIsNamed) {
  std::map<std::string, SpeedMonitor> speeds;
  for (const char* device : {"a/0", "b/0", "c/0"}) compute(speeds[device], 3, 0.01);
  compute(speeds["b/0"], 3, 0.2);
  const auto slow = slow_devices(speeds);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_NEAR(slow.at("b/0"), 20, 1e-6);
  speeds["b/0"].rest();
  EXPECT_TRUE(slow_devices(speeds).empty());
}

TEST(SlowDevices, WhereAllBecomeSlowerNobodyIsToBlame) {
  std::map<std::string, SpeedMonitor> speeds;
  for (const char* device : {"a/0", "b/0", "c/0"}) {
    compute(speeds[device], 3, 0.01);
    compute(speeds[device], 3, 0.06);
  }
  EXPECT_TRUE(slow_devices(speeds).empty());
}

}  // namespace
}  // namespace motley
