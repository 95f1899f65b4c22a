#include "motley/workers/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/workers/scripted_handle_test.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

TEST(Launch, WorkersAreInTheOrderOfStagesAndRanks) {
  ServePlan plan = toy_plan({{2, 1}});
  plan.stages[0].devices = {"box/4", "box/0"};
  EXPECT_THAT(worker_devices(plan), testing::ElementsAre("box/4", "box/0", "box/2"));
}

// What the workers of a plan are sent, in their order.
std::vector<Launch> launches(const ServePlan& plan) {
  std::vector<Launch> sent;
  Script script{.answer = [&](Message message) {
    sent.push_back(std::get<Launch>(std::move(message)));
    return std::nullopt;
  }};
  Workers workers;
  for (const std::string& device : worker_devices(plan)) {
    Worker worker;
    worker.device = device;
    worker.handle = std::make_unique<ScriptedHandle>(script);
    worker.at.address = device + ":1";
    workers.push_back(std::move(worker));
  }
  launch_workers(workers, plan, 3);
  return sent;
}

TEST(Launch, EveryWorkerIsSentTheStagesItTalksToAndAllAddresses) {
  const ServePlan plan = toy_plan({{1, 2, 1, 1}, {1}});
  const std::vector<Launch> sent = launches(plan);
  ASSERT_EQ(sent.size(), 6u);
  const auto stages = [&](std::size_t worker) {
    std::vector<std::string> ids;
    for (const Stage& stage : read_plan<ServePlan>(parse_json(sent[worker].plan_json, "part"), "part").stages)
      ids.push_back(stage.id);
    return ids;
  };
  EXPECT_THAT(stages(0), testing::ElementsAre("r0/s0", "r0/s1"));
  EXPECT_THAT(stages(2), testing::ElementsAre("r0/s0", "r0/s1", "r0/s2"));
  EXPECT_THAT(stages(4), testing::ElementsAre("r0/s2", "r0/s3"));
  EXPECT_THAT(stages(5), testing::ElementsAre("r1/s0"));
  for (const Launch& launch : sent) {
    EXPECT_EQ(launch.devices, worker_devices(plan));
    EXPECT_EQ(launch.workers.at(3).address, "box/3:1");
  }
}

// 300 bytes for each route that it does not serve, and for names and addresses of its workers.
TEST(Launch, DoesNotGrowWithWhatOthersCompute) {
  const auto bytes = [](std::size_t routes) {
    return encode(launches(toy_plan(std::vector<std::vector<int>>(routes, {1, 1, 1, 1})))[1]).size();
  };
  EXPECT_LT(bytes(40), bytes(2) + 38 * 300);
}

}  // namespace
}  // namespace motley
