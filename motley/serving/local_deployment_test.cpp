#include "motley/serving/local_deployment.hpp"

#include <gmock/gmock.h>

#include "motley/base/error.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

TEST(LocalDeployment, PlansOverTheDevicesThatAreLeft) {
  LocalDeployment deployment({.program = "motley-worker"});
  const ServePlan before = toy_plan({{1, 1}});
  const auto after = deployment.replan()(before, {"box/0"});
  ASSERT_TRUE(after);
  for (const Stage& stage : after->stages) EXPECT_EQ(stage.devices, std::vector<std::string>{"box/1"});
  EXPECT_THAT(
      [&] {
        deployment.replan()(before, {"box/0", "box/1"});
      },
      ::testing::ThrowsMessage<Error>(::testing::StartsWith("does not fit: ")));
}

TEST(LocalDeployment, AWorkerThatDiesStartsAgainAndNoMachineJoins) {
  LocalDeployment deployment({.program = "motley-worker"});
  EXPECT_EQ(deployment.restart().deaths, 3);
  EXPECT_FALSE(deployment.restart().waits);
  EXPECT_EQ(deployment.machines(), nullptr);
}

}  // namespace
}  // namespace motley
