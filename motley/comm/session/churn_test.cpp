#include "motley/comm/session/churn_test.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

class Churn : public ::testing::Test {
 protected:
  Churn() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-churn-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~Churn() override { std::filesystem::remove_all(folder_); }
  churn::ChurnOptions options() const { return {.program = MOTLEY_BINARY_DIR "/churn-member", .folder = folder_}; }
  std::string folder_;
};

// bench/churn runs a thousand events.
TEST_F(Churn, KillsAndJoinsOfRealProcesses) {
  churn::ChurnOptions churned = options();
  churned.events = 20;
  churn::ChurnGroup group(churned);
  group.run();
  EXPECT_EQ(group.report().failure, "");
  EXPECT_GT(group.report().kills, 3);
  EXPECT_GT(group.report().checked, group.report().steps);
}

// In the middle of a large all_reduce: the others go on without it, and it comes back as a new member.
TEST_F(Churn, AStoppedProcessIsLeftOutAndFenced) {
  churn::ChurnOptions large = options();
  large.elements = 1 << 21;
  churn::ChurnGroup group(large);
  for (int i = 0; i < 3; ++i) group.start_member();
  ASSERT_TRUE(group.watch(30, [&] {
    return std::ranges::all_of(group.members(), [](const auto& member) { return member.last_step > 0; });
  }));
  churn::ChurnGroup::Living& victim = group.members().back();
  victim.process->stop();
  group.watch(0.1, [] { return false; });  // what it said before
  const std::uint64_t epoch = group.epoch(), step = victim.last_step;
  // The lease is one second of silence; what the others then need to go on depends on the machine.
  ASSERT_TRUE(group.watch(30, [&] { return group.epoch() > epoch; })) << "the others wait for ever";
  EXPECT_EQ(group.report().failure, "");
  EXPECT_EQ(victim.last_step, step);
  victim.process->signal(SIGCONT);
  const std::uint64_t without = group.epoch();
  ASSERT_TRUE(group.watch(30, [&] { return group.epoch() > without && victim.last_step > step + 1; }));
  EXPECT_EQ(group.report().failure, "");
}

}  // namespace
}  // namespace motley
