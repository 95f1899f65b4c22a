// Plans whose stages hold whole experts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "motley/plan/example_test.hpp"
#include "motley/plan/worker_part.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

// Mixtral over four A6000, and two pairs of smaller cards.
ServePlan mixtral_plan() {
  ServePlan plan = box_plan();
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/mixtral-8x7b");
  const LayerRange layers[] = {{0, 20}, {20, 27}, {27, 32}};
  for (std::size_t i = 0; i < 3; ++i) plan.stages[i].layers = plan.routes[0].path[i].layers = layers[i];
  plan.stages[0].expert_shares = {3, 2, 2, 1};
  predict_memory(plan);
  return plan;
}

TEST(ExpertShares, AreWrittenAndReadAgain) {
  const ServePlan plan = mixtral_plan();
  const Value written = write(plan);
  EXPECT_EQ(to_json(*written.find("stages")->as_array()[0].find("expert_shares")), "[3,2,2,1]");
  EXPECT_EQ(written.find("stages")->as_array()[1].find("expert_shares"), nullptr);
  EXPECT_EQ(read_plan<ServePlan>(written, "plan"), plan);
  EXPECT_EQ(part_of(plan, plan.stages[0]).stages[0].expert_shares, plan.stages[0].expert_shares);
}

// Experts of 3 x 4096 x 14336 in 16 bits.
TEST(ExpertShares, DivideMemoryByExperts) {
  const ServePlan plan = mixtral_plan();
  EXPECT_TRUE(verify(plan).empty());
  const std::vector<DeviceMemory> memory = stage_memory(plan, plan.stages[0]);
  constexpr std::int64_t of_an_expert = 20 * 3 * std::int64_t{4096} * 14336 * 2;
  EXPECT_EQ(memory[1].device.weights - memory[3].device.weights, of_an_expert);
  EXPECT_EQ(memory[1], memory[2]);
  EXPECT_GT(memory[0].device.weights, memory[1].device.weights + of_an_expert - 1) << "and the embedding";
}

TEST(ExpertShares, AreRefusedWhereTheyDoNotFit) {
  const auto expect = [](const std::function<void(ServePlan&)>& change, const std::string& what) {
    ServePlan plan = mixtral_plan();
    change(plan);
    plan.predicted = {};
    const std::vector<Violation> found = verify(plan);
    ASSERT_EQ(found.size(), 1U) << what;
    EXPECT_EQ(found[0].place, "stages[0].expert_shares");
    EXPECT_THAT(found[0].what, HasSubstr(what));
    EXPECT_FALSE(found[0].hint.empty());
  };
  const auto with = [](std::vector<std::int64_t> shares) {
    return [shares](ServePlan& plan) { plan.stages[0].expert_shares = shares; };
  };
  expect(with({4, 2, 2, 0}), "rank 3 holds none of the 8 experts of layer 0");
  expect(with({4, 2, 2, 1}), "sum to 9, and layer 0 has 8");
  expect(with({4, 4}), "2 expert shares for 4 devices");
  ServePlan dense = box_plan();
  dense.stages[0].expert_shares = {1, 1, 1, 1};
  dense.predicted = {};
  ASSERT_EQ(verify(dense).size(), 1U);
  EXPECT_THAT(verify(dense)[0].what, HasSubstr("no experts"));
}

TEST(ExpertShares, AreCounts) {
  const std::string written = to_json(write(mixtral_plan()));
  for (const char* shares : {"[3,2,2.5,1]", "[-3,2,2,7]", "[3,2,\"two\",1]"}) {
    std::string changed = written;
    changed.replace(changed.find("[3,2,2,1]"), 9, shares);
    EXPECT_THROW(read_plan<ServePlan>(parse_json(changed, "plan"), "plan"), Error) << shares;
  }
}

}  // namespace
}  // namespace motley
