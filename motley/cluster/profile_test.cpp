#include "motley/cluster/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

Profile profile_of(const std::string& json) { return read<Profile>(parse_json(json, "test profile"), "test profile"); }

std::string complaint(const std::string& json) {
  try {
    profile_of(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ProfileFile, RatesAreFoundByTypeAndDegree) {
  const Profile profile = profile_of(R"({"format": "motley.profile/1", "layer_rate": [
      {"device_type": "RTX 4090", "tokens_per_s": [10, 5]}, {"device_type": "RTX 4090", "tp": 2, "tokens_per_s": [18]}]})");
  ASSERT_TRUE(find_layer_rate(profile, "rtx4090", 2));
  EXPECT_EQ(find_layer_rate(profile, "rtx4090", 2)->tokens_per_s, std::vector<double>{18});
  EXPECT_EQ(find_layer_rate(profile, "RTX 4090", 1)->tokens_per_s.size(), 2u);
  EXPECT_EQ(find_layer_rate(profile, "RTX 4090", 4), nullptr);
  EXPECT_EQ(find_layer_rate(profile, "T4", 1), nullptr);
}

TEST(ProfileFile, KeepsWhatWasCountedOfRouting) {
  Profile profile;
  profile.routing = {{"mixture", 3, 4, 10.5, 9.25}};
  profile.gamma = {{"mixture", 4, 0.8, 0.75}, {"mixture", 16, 0.7, 0.5}, {"other", 4, 1, 1}};
  EXPECT_EQ(profile_of(to_json(write(profile))), profile);
  const std::string gamma = R"({"format": "motley.profile/1", "gamma": [{"model": "m", "tokens": 16, "sequences": 0.8,
      "prompt": 0.8}, {"model": "m", "tokens": 4, "sequences": 0.8, "prompt": )";
  EXPECT_THAT(complaint(gamma + "0.8}]}"), testing::HasSubstr("gamma[1]: 4 tokens come after 16"));
  EXPECT_THAT(complaint(gamma + "1.1}]}"), testing::HasSubstr("gamma[1].prompt"));
  EXPECT_THAT(complaint(gamma + "0}]}"), testing::HasSubstr("gamma[1].prompt"));
}

TEST(ProfileFile, WhatCannotBeIsNamed) {
  EXPECT_THAT(
      complaint(R"({"format": "motley.profile/1", "layer_rate": [{"device_type": "T4", "tokens_per_s": [1, -2]}]})"),
      testing::HasSubstr("layer_rate[0].tokens_per_s"));
  EXPECT_THAT(complaint(R"({"format": "motley.profile/1", "layer_rate": [{"device_type": "T4", "tokens_per_s": []}]})"),
              testing::HasSubstr("no rates"));
  EXPECT_THAT(complaint(R"({"format": "motley.profile/1", "layer_rate": [{"device_type": "T4", "tokens_per_s": [1]},
                            {"device_type": "t4", "tokens_per_s": [2]}]})"),
              testing::HasSubstr("twice"));
  EXPECT_THAT(
      complaint(
          R"({"format": "motley.profile/1", "link_rate": [{"from": "a", "to": "b", "bytes": [1, 2], "bytes_per_s": [1]}]})"),
      testing::HasSubstr("2 sizes and 1 rates"));
  EXPECT_THAT(
      complaint(
          R"({"format": "motley.profile/1", "link_rate": [{"from": "a", "to": "b", "bytes": [2, 1], "bytes_per_s": [1, 1]}]})"),
      testing::HasSubstr("the sizes must ascend"));
}

TEST(ProfileFile, ReferenceIsCurrent) { expect_reference_is_current("profile.md", schema<Profile>().doc()); }

}  // namespace
}  // namespace motley
