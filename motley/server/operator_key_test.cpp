#include "motley/server/operator_key.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "motley/base/error.hpp"

namespace motley {
namespace {

class OperatorKeyTest : public ::testing::Test {
 protected:
  OperatorKeyTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "motley-keys-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    if (const char* given = std::getenv("XDG_STATE_HOME")) before_ = given;
    ::setenv("XDG_STATE_HOME", folder_.c_str(), 1);
  }
  ~OperatorKeyTest() override {
    before_.empty() ? ::unsetenv("XDG_STATE_HOME") : ::setenv("XDG_STATE_HOME", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path keys() const { return folder_ / "motley/operators"; }

  std::filesystem::path folder_;
  std::string before_;
};

TEST_F(OperatorKeyTest, ANewOneIsFoundOnThisMachineWhileItsServerLives) {
  {
    OperatorKey key("");
    EXPECT_GE(key.text().size(), 16u);
    EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), "");
    key.keep("0.0.0.0", 8000);
    for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0"})
      EXPECT_EQ(kept_operator_key(host, "8000"), key.text());
    EXPECT_EQ(kept_operator_key("10.0.0.5", "8000"), "");
    EXPECT_EQ(kept_operator_key("127.0.0.1", "8001"), "");
  }
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), "");
}

TEST_F(OperatorKeyTest, OneThatWasGivenIsNotKeptAndEndsWhatWas) {
  OperatorKey before("");
  before.keep("127.0.0.1", 8000);
  OperatorKey given("chosen");
  given.keep("127.0.0.1", 8000);
  EXPECT_EQ(given.text(), "chosen");
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), "");
}

TEST_F(OperatorKeyTest, AnotherServersKeyOutlivesThisOne) {
  OperatorKey second("");
  {
    OperatorKey first("");
    first.keep("127.0.0.1", 8000);
    second.keep("127.0.0.1", 8000);
  }
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), second.text());
}

TEST_F(OperatorKeyTest, WhatOthersCouldHaveWrittenIsNotBelieved) {
  OperatorKey key("");
  key.keep("127.0.0.1", 8000);
  ::chmod((keys() / "127.0.0.1:8000").c_str(), 0644);
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), "");
  ::chmod((keys() / "127.0.0.1:8000").c_str(), 0600);
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), key.text());
  ::chmod(keys().c_str(), 0755);
  EXPECT_EQ(kept_operator_key("127.0.0.1", "8000"), "");
  EXPECT_THROW(OperatorKey("").keep("127.0.0.1", 8001), Error);
}

}  // namespace
}  // namespace motley
