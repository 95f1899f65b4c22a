#include "motley/fleet/saved_deployment.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <fstream>

#include "motley/base/value.hpp"
#include "motley/fleet/deployment_group.hpp"

namespace motley {
namespace {

class SavedDeploymentTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "saved_deployment_test";
  const std::filesystem::path file_ = folder_ / "8000.json";
};

// The same authority, key and address; tokens count as long as they did, and what was revoked stays so.
TEST_F(SavedDeploymentTest, ComesBackAsItWas) {
  EXPECT_FALSE(read_saved_deployment(file_));
  Invitation before, revoked;
  {
    const DeploymentGroup group("lab", "127.0.0.1:0");
    revoked = group.invitation("127.0.0.1:1", 60);
    EXPECT_EQ(group.admission().certify({"attic", "k1", revoked.token}, 60).objection, "");
    EXPECT_EQ(group.admission().certify({"shadow", "k2", revoked.token}, 60).objection, "");
    group.admission().revoke("attic", {});
    before = group.invitation("127.0.0.1:1", 60);
    save_deployment(file_, group.record("127.0.0.1:1"));
  }
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const auto kept = read_saved_deployment(file_);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->driver, "127.0.0.1:1");
  const DeploymentGroup group("lab", *kept);
  const Invitation after = group.invitation(kept->driver, 60);
  EXPECT_EQ(after.authority, before.authority);
  EXPECT_EQ(after.coordinator, before.coordinator);
  EXPECT_EQ(group.admission().token_objection(before.token), "");
  EXPECT_EQ(group.admission().token_objection(revoked.token), "the token has been revoked");
  for (const std::string name : {"attic", "shadow"}) EXPECT_NE(group.admission().member_objection(name), "");
  EXPECT_EQ(group.access().key, kept->key);
}

TEST_F(SavedDeploymentTest, TokensExpireWhileNobodyRuns) {
  AdmissionRecord record;
  record.tokens["old"] = {static_cast<double>(std::time(nullptr)) - 1, false};
  record.tokens["new"] = {static_cast<double>(std::time(nullptr)) + 60, false};
  const GroupAdmission admission(record);
  EXPECT_NE(admission.token_objection("old").find("expired"), std::string::npos);
  EXPECT_EQ(admission.token_objection("new"), "");
  EXPECT_EQ(admission.record().tokens.size(), 1u);
}

TEST_F(SavedDeploymentTest, WhatIsDamagedIsNone) {
  {
    const DeploymentGroup group("lab", "127.0.0.1:0");
    save_deployment(file_, group.record("127.0.0.1:1"));
  }
  const std::string text = read_file(file_);
  for (const std::string& damaged :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("{\"authority\": 1}")}) {
    std::ofstream(file_) << damaged;
    EXPECT_FALSE(read_saved_deployment(file_)) << damaged;
  }
  std::string other = text;
  other.replace(other.find("BEGIN CERT"), 10, "BEGIN CURT");
  std::ofstream(file_) << other;
  EXPECT_FALSE(read_saved_deployment(file_));
}

}  // namespace
}  // namespace motley
