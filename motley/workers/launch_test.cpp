#include "motley/workers/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

TEST(Launch, WorkersAreInTheOrderOfStagesAndRanks) {
  ServePlan plan = toy_plan({{2, 1}});
  plan.stages[0].devices = {"box/4", "box/0"};
  EXPECT_THAT(worker_devices(plan), testing::ElementsAre("box/4", "box/0", "box/2"));
}

}  // namespace
}  // namespace motley
