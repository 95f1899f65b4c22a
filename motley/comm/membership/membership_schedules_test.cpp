#include "motley/comm/membership/membership_schedules_test.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// bench/membership_schedules runs ten thousand.
TEST(MembershipSchedules, SurvivorsAgreeAndSumsAreRight) {
  std::uint64_t committed = 0, late = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const auto result = schedules::run_schedule(seed);
    ASSERT_EQ(result.failure, "") << "seed " << seed;
    committed += result.committed_steps;
    late += result.late_frames;
  }
  EXPECT_GT(committed, 1000U);
  EXPECT_GT(late, 10U);  // so that the fence has been tried
}

}  // namespace
}  // namespace motley
