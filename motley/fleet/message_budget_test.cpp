#include "motley/fleet/message_budget.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// Messages until one is too many.
int count_until_refused(MessageBudget& budget, std::size_t bytes, Instant at) {
  int taken = 0;
  while (taken < 1'000'000 && budget.take(bytes, at)) ++taken;
  return taken;
}

TEST(MessageBudget, HoldsForABurstAndForGood) {
  const Instant start = Clock::now();
  MessageBudget budget;
  EXPECT_NEAR(count_until_refused(budget, 1, start), 2000, 10);
  EXPECT_NEAR(count_until_refused(budget, 1, start + std::chrono::seconds(2)), 1000, 10);
  EXPECT_NEAR(count_until_refused(budget, 1, start + std::chrono::hours(1)), 2000, 10) << "no more than at once";

  MessageBudget large;
  EXPECT_NEAR(count_until_refused(large, 1 << 20, start), 64, 1);
  MessageBudget busy;  // 64 workers that fetch, and what a machine holds, twice a second
  for (int i = 0; i < 3600 * 2; ++i) {
    const Instant now = start + i * std::chrono::milliseconds(500);
    for (int worker = 0; worker < 64 * 3; ++worker) EXPECT_TRUE(busy.take(200, now));
    EXPECT_TRUE(busy.take(786'432, now));
  }
}

}  // namespace
}  // namespace motley
