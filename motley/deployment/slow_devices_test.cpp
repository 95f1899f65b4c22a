#include "motley/deployment/slow_devices.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

using Factors = std::map<std::string, double>;
const std::set<std::string> both{"a/0", "b/0"}, other{"a/0"};

// True when the last of these looks, a second apart, says so.
bool slow_for_2_s(SlowDevices& devices, double factor, double from_s) {
  EXPECT_FALSE(devices.note({{"b/0", factor}}, both, from_s));
  EXPECT_FALSE(devices.note({{"b/0", factor}}, both, from_s + 1));
  return devices.note({{"b/0", factor}}, both, from_s + 2);
}

TEST(SlowDevices, OneThatBecomesSlowIsPlannedForOnce) {
  SlowDevices devices;
  EXPECT_FALSE(devices.note({}, both, 0));
  EXPECT_TRUE(slow_for_2_s(devices, 20, 1));
  EXPECT_EQ(devices.factors(), (Factors{{"b/0", 20}}));
  for (int s = 4; s < 100; ++s) EXPECT_FALSE(devices.note({{"b/0", 20.0 + s % 7}}, both, s));
}

TEST(SlowDevices, WhatPassesIsNoReason) {
  SlowDevices devices;
  for (int s = 0; s < 100; ++s) EXPECT_FALSE(devices.note(s % 3 == 0 ? Factors{} : Factors{{"b/0", 20}}, both, s));
  EXPECT_TRUE(devices.factors().empty());
}

TEST(SlowDevices, AnotherLookComesAMinuteLaterAtTheSoonest) {
  SlowDevices devices;
  EXPECT_TRUE(slow_for_2_s(devices, 5, 1));
  EXPECT_FALSE(slow_for_2_s(devices, 20, 30));
  EXPECT_EQ(devices.factors().at("b/0"), 20);
  EXPECT_TRUE(devices.note({{"b/0", 20}}, both, 63));
}

TEST(SlowDevices, OneThatWasLeftOutIsForgivenLaterEachTime) {
  SlowDevices devices;
  double now_s = 1;
  for (const double away_s : {60.0, 120.0, 240.0}) {
    EXPECT_TRUE(slow_for_2_s(devices, 20, now_s - 2));
    EXPECT_FALSE(devices.note({}, other, now_s + away_s - 1));
    EXPECT_EQ(devices.factors().size(), 1u);
    EXPECT_TRUE(devices.note({}, other, now_s + away_s));
    EXPECT_TRUE(devices.factors().empty());
    now_s += away_s + 100;
  }
}

TEST(SlowDevices, OneThatServesAndIsAsFastAsBeforeIsForgivenAfterAMinute) {
  SlowDevices devices;
  EXPECT_TRUE(slow_for_2_s(devices, 20, 1));
  EXPECT_FALSE(devices.note({}, both, 62));
  EXPECT_TRUE(devices.note({}, both, 63));
  EXPECT_TRUE(devices.factors().empty());
}

}  // namespace
}  // namespace motley
