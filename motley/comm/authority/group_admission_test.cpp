#include "motley/comm/authority/group_admission.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <limits>
#include <thread>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

TEST(GroupAdmission, TokensCountUntilTheyExpireOrAreTakenBack) {
  GroupAdmission admission;
  EXPECT_EQ(admission.token_objection(""), "the token is not this group's");
  const std::string day = admission.new_token(24 * 3600), ever = admission.new_token(1e12);
  EXPECT_NE(day, ever);
  EXPECT_EQ(admission.token_objection(day), "");
  EXPECT_EQ(admission.token_objection(ever), "");
  EXPECT_EQ(admission.token_objection(day.substr(1)), "the token is not this group's");

  const std::string moment = admission.new_token(1e-6);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_THAT(admission.token_objection(moment), HasSubstr("the token expired"));
  EXPECT_THAT(admission.token_objection(moment), HasSubstr("ago"));

  admission.revoke_tokens();
  EXPECT_EQ(admission.token_objection(day), "the token has been revoked");
  EXPECT_EQ(admission.token_objection(admission.new_token(60)), "");
}

TEST(GroupAdmission, AMemberIsTakenBackWithTheTokensThatItKnows) {
  GroupAdmission admission;
  const std::string token = admission.new_token(60);
  EXPECT_THAT(admission.revoke("box", {}), ::testing::IsEmpty());
  EXPECT_EQ(admission.member_objection("box"), "the member \"box\" has been revoked");
  EXPECT_EQ(admission.member_objection("attic"), "");
  EXPECT_EQ(admission.token_objection(token), "the token has been revoked");
}

constexpr double hour_s = 3600;

TEST(GroupAdmission, AKeyHasOneNameThatNoOtherKeyGets) {
  GroupAdmission admission;
  const std::string token = admission.new_token(60), other = admission.new_token(60);
  const auto first = admission.certify({"box", "k1", token}, hour_s);
  EXPECT_TRUE(first.objection.empty() && first.first);
  const auto again = admission.certify({"box", "k1", other}, hour_s);
  EXPECT_TRUE(again.objection.empty() && !again.first) << "its own";
  for (const std::string name : {"box", "Box"})
    EXPECT_THAT(admission.certify({name, "k2", other}, hour_s).objection,
                HasSubstr("another machine is called \"box\": choose another name"));
  EXPECT_EQ(admission.certify({"attic", "k1", other}, hour_s).objection, "this key has a name already: \"box\"");
  EXPECT_EQ(admission.certify({"box", "k3", ""}, hour_s).objection, "") << "it shows its certificate";
  EXPECT_EQ(admission.record().certified.at("box").key, "k3");
  EXPECT_EQ(admission.certify({"b-o-x", "k2", other}, hour_s).objection, "");

  EXPECT_EQ(admission.certify({"guest", "k4", token}, 1e-6).objection, "");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(admission.certify({"guest", "k5", token}, hour_s).first) << "no certificate is valid any more";
}

// A driver takes up what was kept on a machine that has lost its key.
TEST(GroupAdmission, TheDriversNameIsItsOwnWhateverItsKey) {
  GroupAdmission admission;
  const std::string link = admission.new_token(60);
  EXPECT_EQ(admission.certify({"box", "k1", link}, hour_s).objection, "");
  const std::string own = admission.reserve("box");
  EXPECT_EQ(admission.token_objection(own), "");
  EXPECT_FALSE(admission.record().tokens.contains(own)) << "it is not kept";
  for (const std::string name : {"box", "Box"})
    for (const std::string key : {"k1", "k2"})
      EXPECT_THAT(admission.certify({name, key, link}, hour_s).objection,
                  HasSubstr("another machine is called \"box\""));
  EXPECT_EQ(admission.certify({"box", "k2", own}, hour_s).objection, "");
  EXPECT_EQ(admission.record().certified.at("box").key, "k2");
  admission.revoke_tokens();
  EXPECT_EQ(admission.token_objection(own), "");
}

TEST(GroupAdmission, WhatATokenCertifiedIsRevokedWithWhomItLetIn) {
  GroupAdmission admission;
  const std::string token = admission.new_token(60), other = admission.new_token(60);
  for (const std::string name : {"mallory", "shadow", "beta"})
    EXPECT_EQ(admission.certify({name, "key of " + name, token}, hour_s).objection, "");
  EXPECT_EQ(admission.certify({"gamma", "key of gamma", other}, hour_s).objection, "");
  EXPECT_EQ(admission.certify({"beta", "another key of beta", ""}, hour_s).objection, "") << "renewed";

  EXPECT_THAT(admission.revoke("mallory", {"beta", "gamma", "mallory"}), ::testing::ElementsAre("beta"));
  for (const std::string name : {"mallory", "shadow"}) {
    EXPECT_EQ(admission.member_objection(name), "the member \"" + name + "\" has been revoked");
    EXPECT_EQ(admission.certify({name, "key of " + name, ""}, hour_s).objection, admission.member_objection(name));
  }
  for (const std::string name : {"beta", "gamma"}) EXPECT_EQ(admission.member_objection(name), "");
  EXPECT_EQ(admission.certify({"fresh", "key of fresh", token}, hour_s).objection, "the token has been revoked");

  const GroupAdmission after(admission.record());
  EXPECT_NE(after.member_objection("shadow"), "") << "also for a process after this one";
}

TEST(GroupAdmission, NamesAreBounded) {
  GroupAdmission admission;
  const std::string token = admission.new_token(60), other = admission.new_token(60);
  std::size_t names = 0;
  while (names < 5000 &&
         admission.certify({fmt::format("m{}", names), std::to_string(names), token}, hour_s).objection.empty())
    ++names;
  EXPECT_EQ(names, GroupAdmission::most_names_of_token);
  EXPECT_EQ(admission.certify({"honest", "k", other}, hour_s).objection, "") << "by another link";
  EXPECT_EQ(admission.certify({"m0", "0", token}, hour_s).objection, "") << "again";
}

TEST(GroupAdmission, AChangeThatCannotBeKeptHasNotHappened) {
  GroupAdmission admission;
  const std::string token = admission.new_token(60);
  EXPECT_EQ(admission.certify({"box", "k", token}, hour_s).objection, "");
  const AdmissionRecord before = admission.record();
  bool full = true;
  AdmissionRecord kept;
  admission.keep_with([&](const AdmissionRecord& record) {
    EXPECT_EQ(admission.member_objection("box"), "") << "others ask meanwhile, and it does not count yet";
    if (full) throw Error(ErrorCode::environment, "the disk is full");
    kept = record;
  });
  EXPECT_THROW(admission.revoke("box", {}), Error);
  EXPECT_THROW(admission.revoke_tokens(), Error);
  EXPECT_THROW(admission.new_token(60), Error);
  EXPECT_THROW(admission.certify({"attic", "k2", token}, hour_s), Error);
  EXPECT_EQ(admission.record(), before);
  full = false;
  admission.revoke("box", {});
  EXPECT_EQ(kept, admission.record());
  EXPECT_NE(admission.member_objection("box"), "");
}

TEST(GroupAdmission, ALifetimeIsPositive) {
  GroupAdmission admission;
  for (const double lifetime_s : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(admission.new_token(lifetime_s), Error);
}

}  // namespace
}  // namespace motley
