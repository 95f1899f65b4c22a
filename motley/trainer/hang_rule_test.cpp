#include "motley/trainer/hang_rule.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace motley {
namespace {

const std::vector<std::string> hang_names = {"box/0", "box/1", "box/2"};

WorkerAtStep at(std::size_t worker, Doing doing, double for_s, double processor_s = 0, double blocked_s = 0,
                int peer = -1) {
  return {.name = hang_names[worker],
          .activity = {.step = 7, .doing = doing, .peer = peer, .for_s = for_s, .processor_s = processor_s},
          .for_s = for_s,
          .blocked_s = blocked_s};
}

std::optional<std::string> hang(const std::vector<WorkerAtStep>& workers) {
  return find_hang(workers, hang_names, 7, {.blocked_s = 7.5, .other_s = 30});
}

TEST(HangRule, NamesAWorkerThatIsBlockedWhileItComputes) {
  EXPECT_EQ(hang({at(0, Doing::meeting, 9, 0, 9, 1), at(1, Doing::computing, 9, 0.5, 8)}),
            "box/1 hangs in step 7: it computes, but has had no processor time for 8.0 s");
}

TEST(HangRule, NamesAWorkerInAnEndlessLoop) {
  EXPECT_EQ(hang({at(0, Doing::receiving, 40, 0, 40, 1), at(1, Doing::computing, 40, 31)}),
            "box/1 hangs in step 7: it has spent 31.0 s of processor time on one layer");
}

// On a loaded machine: an hour in one layer, with some processor time.
TEST(HangRule, SlowWorkersAndThoseThatWaitForThemAreHealthy) {
  EXPECT_FALSE(hang({at(0, Doing::receiving, 3600, 0, 3600, 1), at(1, Doing::computing, 3600, 29, 2),
                     at(2, Doing::meeting, 3000, 0, 3000, 0)}));
}

// Its processor time did not grow while it waited before.
TEST(HangRule, AWorkerThatHasJustBegunToComputeIsHealthy) {
  EXPECT_FALSE(hang({at(1, Doing::computing, 0.1, 0, 3600)}));
}

TEST(HangRule, NamesAllThatWaitWhereNoWorkerComputes) {
  EXPECT_EQ(hang({at(0, Doing::receiving, 31, 0, 31, 1), at(1, Doing::meeting, 32, 0, 32, 0)}),
            "no worker computes step 7: box/0 waits for box/1 (31.0 s), box/1 waits for other workers (32.0 s)");
  EXPECT_EQ(hang({at(2, Doing::waiting_for_steps, 31)}),
            "no worker computes step 7: box/2 waits for the step (31.0 s)");
  EXPECT_EQ(hang({at(2, Doing::sending, 31, 0, 0, 77)}),
            "no worker computes step 7: box/2 waits for other workers (31.0 s)");
  EXPECT_FALSE(hang({at(0, Doing::receiving, 31, 0, 31, 1), at(1, Doing::meeting, 29, 0, 29, 0)}));
  EXPECT_FALSE(hang({}));
}

TEST(HangRule, TheLimitIsThreeTimesTheSlowestStepOrThePatience) {
  EXPECT_EQ(hang_limits(10, 1, 0).blocked_s, 7.5);
  EXPECT_EQ(hang_limits(10, 1, 0).other_s, 7.5);
  EXPECT_EQ(hang_limits(10, 40, 1000).other_s, 90);
  EXPECT_EQ(hang_limits(10, {}, 0).blocked_s, 7.5) << "in the first step";
  EXPECT_EQ(hang_limits(10, {}, 0).other_s, 600);
  EXPECT_EQ(hang_limits(10, {}, 1000).other_s, 10000);
}

}  // namespace
}  // namespace motley
