#include "motley/serving/cache_moves.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// One route of stages of one device each, as (device, first layer, layers' end).
struct Part {
  std::string device;
  std::int64_t first, end;
};
ServePlan chain(const std::vector<Part>& parts) {
  ServePlan plan = toy_plan({std::vector<int>(4, 1)});
  plan.stages.resize(parts.size());
  plan.routes[0].path.resize(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    plan.stages[i].devices = {parts[i].device};
    plan.stages[i].layers = {parts[i].first, parts[i].end};
    plan.routes[0].path[i].layers = plan.stages[i].layers;
  }
  return plan;
}

ServePlan halves() { return chain({{"box/0", 0, 2}, {"box/1", 2, 4}}); }

TEST(CacheMoves, WhatALayersNewWorkerLacksComesFromTheOldOne) {
  EXPECT_THAT(cache_moves(halves(), halves(), {}), IsEmpty());
  EXPECT_THAT(cache_moves(halves(), chain({{"box/0", 0, 1}, {"box/1", 1, 4}}), {}), ElementsAre(CacheMove{1, 0, 1}));
  EXPECT_THAT(cache_moves(halves(), chain({{"box/0", 0, 1}, {"box/2", 1, 3}, {"box/1", 3, 4}}), {}),
              ElementsAre(CacheMove{1, 0, 1}, CacheMove{2, 2, 1}));
}

TEST(CacheMoves, StagesThatComputeAgainNeedNothing) {
  // box/1 has left: its layers are lost, and what stands before them is computed again.
  EXPECT_THAT(cache_moves(halves(), chain({{"box/2", 0, 1}, {"box/0", 1, 4}}), {}), IsEmpty());
  EXPECT_THAT(cache_moves(halves(), chain({{"box/2", 0, 1}, {"box/1", 1, 4}}), {}), IsEmpty());
  const ServePlan three = chain({{"box/0", 0, 1}, {"box/1", 1, 3}, {"box/2", 3, 4}});
  const ServePlan after = chain({{"box/1", 0, 2}, {"box/2", 2, 4}});
  EXPECT_THAT(cache_moves(three, after, {}), ElementsAre(CacheMove{2, 0, 1})) << "box/0 is not there to give layer 0";
}

TEST(CacheMoves, TheLostGiveNothing) {
  const ServePlan before = chain({{"box/0", 0, 1}, {"box/1", 1, 3}, {"box/2", 3, 4}});
  const ServePlan after = chain({{"box/0", 0, 1}, {"box/1", 1, 2}, {"box/2", 2, 4}});
  EXPECT_THAT(cache_moves(before, after, {}), ElementsAre(CacheMove{2, 1, 2}));
  EXPECT_THAT(cache_moves(before, after, {"box/0"}), ElementsAre(CacheMove{2, 1, 2}));
  EXPECT_THAT(cache_moves(before, after, {"box/1"}), IsEmpty());
  EXPECT_THAT(cache_moves(before, after, {"box/2"}), IsEmpty()) << "it lacks the last layer";
}

TEST(CacheMoves, OtherHeadsTypesBlocksAndRoutesAreNoGifts) {
  const ServePlan after = chain({{"box/0", 0, 1}, {"box/1", 1, 4}});
  ServePlan other = after;
  other.step.block_tokens *= 2;
  EXPECT_THAT(cache_moves(halves(), other, {}), IsEmpty());
  other = after;
  other.stages[1].kv_type = DType::bf16;
  EXPECT_THAT(cache_moves(halves(), other, {}), IsEmpty());
  other = after;
  other.stages[1].devices = {"box/1", "box/2"};
  EXPECT_THAT(cache_moves(halves(), other, {}), IsEmpty());
  other = after;
  other.routes.push_back(other.routes[0]);
  EXPECT_THAT(cache_moves(halves(), other, {}), IsEmpty());
}

TEST(CacheMoves, TakeAsLongAsTheBusiestLink) {
  const ServePlan after = chain({{"box/0", 0, 1}, {"box/1", 1, 4}});
  const Architecture& arch = after.model.arch;
  const double layer_bytes =
      3.0 * static_cast<double>(after.step.block_tokens * kv_bytes_per_token(arch, 0, after.stages[0].kv_type));
  const Cluster& cluster = after.cluster;
  const PathSpeed up = cluster.link(cluster.find_device("box/0"), cluster.find_device("box/1"));
  const auto seconds = [&](std::vector<CacheMove> moves) {
    return seconds_of(CacheHandover{.moves = std::move(moves), .blocks = {4, 5, 9}}, after);
  };
  EXPECT_DOUBLE_EQ(seconds({{1, 0, 1}}), up.seconds(layer_bytes));
  EXPECT_DOUBLE_EQ(seconds({{1, 0, 1}, {2, 0, 1}, {3, 1, 0}}), up.seconds(2 * layer_bytes));
  EXPECT_EQ(seconds({}), 0);
}

}  // namespace
}  // namespace motley
