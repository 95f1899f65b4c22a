#include "motley/agent/saved_identity.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "motley/base/value.hpp"

namespace motley {
namespace {

class SavedIdentityTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Enrolment enrolment(int days = 1) const { return {authority_.issue("box", days), 0, "key"}; }

  const Authority authority_ = Authority::create("lab");
  const std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) / "saved_identity_test";
  const std::filesystem::path file_ = folder_ / "box.identity";
};

TEST_F(SavedIdentityTest, ComesBackUntilItsCertificateExpires) {
  EXPECT_FALSE(read_saved_identity(file_));
  const Enrolment given = enrolment();
  save_identity(file_, given);
  save_identity(file_, given);  // in place of the other
  const auto kept = read_saved_identity(file_);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->identity.certificate, given.identity.certificate);
  EXPECT_EQ(kept->identity.key, given.identity.key);
  EXPECT_EQ(kept->key, "key");
  EXPECT_NEAR(kept->valid_s, 24 * 3600, 60);
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no other file is left";

  save_identity(file_, enrolment(0));
  EXPECT_FALSE(read_saved_identity(file_));
}

TEST_F(SavedIdentityTest, AKeyIsMadeOnce) {
  const std::filesystem::path file = folder_ / "new" / "box.key";
  const std::string key = saved_key(file, "box");
  EXPECT_EQ(saved_key(file, "box"), key);
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  std::ofstream(file) << "no key";
  EXPECT_NE(saved_key(file, "box"), key);
  EXPECT_FALSE(saved_key(folder_ / "new" / "box.key" / "impossible", "box").empty());
}

TEST_F(SavedIdentityTest, WhatIsDamagedIsNone) {
  save_identity(file_, enrolment());
  const std::string text = read_file(file_);
  for (const std::string& damaged :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), std::string("{\"certificate\": 1}")}) {
    std::ofstream(file_) << damaged;
    EXPECT_FALSE(read_saved_identity(file_)) << damaged;
  }
  std::string other = text;
  other.replace(other.find("BEGIN CERT"), 10, "BEGIN CURT");
  std::ofstream(file_) << other;
  EXPECT_FALSE(read_saved_identity(file_));
}

}  // namespace
}  // namespace motley
