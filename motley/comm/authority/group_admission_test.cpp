#include "motley/comm/authority/group_admission.hpp"

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
  admission.revoke("box");
  EXPECT_EQ(admission.member_objection("box"), "the member \"box\" has been revoked");
  EXPECT_EQ(admission.member_objection("attic"), "");
  EXPECT_EQ(admission.token_objection(token), "the token has been revoked");
}

TEST(GroupAdmission, ALifetimeIsPositive) {
  GroupAdmission admission;
  for (const double lifetime_s : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(admission.new_token(lifetime_s), Error);
}

}  // namespace
}  // namespace motley
