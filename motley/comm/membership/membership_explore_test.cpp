#include <gtest/gtest.h>

#include "motley/comm/membership/membership_exploration_test.hpp"

namespace motley {
namespace {

// Never two lists for one epoch; never a step committed for one and aborted for another, or without a member's part;
// and from wherever the group stands it finds together again. bench/membership_explore runs the larger budgets.
TEST(MembershipExploration, OneChangeAndOneDeath) {
  const auto result = exploration::explore({.changes = 1, .deaths = 1, .steps = 2}, 64);
  EXPECT_EQ(result.failure, "");
  EXPECT_GT(result.states, 20000U);
}

TEST(MembershipExploration, TwoChanges) {
  const auto result = exploration::explore({.changes = 2, .deaths = 0, .steps = 1}, 64);
  EXPECT_EQ(result.failure, "");
  EXPECT_GT(result.states, 20000U);
}

// A joiner takes part in steps before it has the state: no member takes it for a holder.
TEST(MembershipExploration, JoinersThatLearn) {
  const auto result = exploration::explore({.changes = 1, .deaths = 1, .steps = 2, .learners = true}, 64);
  EXPECT_EQ(result.failure, "");
  EXPECT_GT(result.states, 20000U);
}

}  // namespace
}  // namespace motley
