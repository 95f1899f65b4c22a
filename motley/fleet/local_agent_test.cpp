#include "motley/fleet/local_agent.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/types.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "motley/comm/net/deadline_test.hpp"
#include "motley/fleet/state_folder_test.hpp"

namespace motley {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class LocalAgentTest : public ::testing::Test {
 protected:
  // An agent that notes its process and its link, and then does this.
  std::vector<std::string> noting(const std::string& then) const {
    return {"/bin/sh", "-c", fmt::format("echo $$ $MOTLEY_LINK >> {}; {}", file().string(), then)};
  }
  std::filesystem::path file() const { return folder_.path / "started"; }
  std::vector<std::string> lines(std::size_t at_least) const {
    std::vector<std::string> all;
    for (const Instant until = soon(); all.size() < at_least && seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
      all.clear();
      std::ifstream in(file());
      for (std::string line; std::getline(in, line);) all.push_back(line);
    }
    return all;
  }
  static bool is_gone(const std::string& line) { return ::kill(std::stoi(line), 0) != 0; }

  StateFolder folder_;
};

TEST_F(LocalAgentTest, IsStartedAgainAsLongAsTheDeploymentLives) {
  const LocalAgent agent(noting("exit 5"), "motley://here", 0.001);
  EXPECT_THAT(lines(3), Each(::testing::EndsWith(" motley://here")));
  EXPECT_FALSE(agent.was_refused());
}

TEST_F(LocalAgentTest, IsNotStartedAgainOnceItWasRefused) {
  const LocalAgent agent(noting("exit 2"), "motley://here", 0.001);
  for (const Instant until = soon(); !agent.was_refused() && seconds_until(until) > 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(agent.was_refused());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(lines(1).size(), 1u);
}

TEST_F(LocalAgentTest, OneThatCannotBeStartedIsTriedAgain) {
  const LocalAgent agent({"/nowhere"}, "motley://here", 0.001);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(agent.was_refused());
}

TEST_F(LocalAgentTest, EndsAtOnceWhereItIsKilled) {
  std::string started;
  {
    LocalAgent agent(noting("exec sleep 100"), "motley://here");
    started = lines(1).at(0);
    EXPECT_FALSE(is_gone(started));
    agent.kill();
  }
  EXPECT_TRUE(is_gone(started));
}

TEST_F(LocalAgentTest, HasTimeToEndByItself) {
  std::string started;
  {
    const LocalAgent agent(noting("sleep 0.1; echo 0 ended >> " + file().string()), "motley://here");
    started = lines(1).at(0);
  }
  EXPECT_THAT(lines(2), ElementsAre(started, "0 ended"));
}

}  // namespace
}  // namespace motley
