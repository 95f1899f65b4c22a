#include "motley/batching/block_pool.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

LaneKey key(std::uint64_t digest, std::size_t lane = 0) { return {lane, {{digest}}}; }

TEST(BlockPool, HandsOutEveryBlockOnce) {
  BlockPool pool(3);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), 2);
  EXPECT_EQ(pool.free_count(), 0);
  EXPECT_THROW(pool.take(), Error);
  pool.give_back(1);
  EXPECT_THROW(pool.give_back(1), Error);
  EXPECT_THROW(pool.give_back(3), Error);
  EXPECT_THROW(pool.give_back(-1), Error);
  EXPECT_EQ(pool.take(), 1);
  pool.give_back(0);
  pool.give_back(2);
  pool.hold({2});
  EXPECT_EQ(pool.free_count(), 1);
  EXPECT_THROW(pool.hold({3}), Error);
  EXPECT_EQ(pool.take(), 0);
}

// So that a plan for more blocks than there will ever be costs nothing.
TEST(BlockPool, BlocksThatWereNeverHeldTakeNoMemory) {
  BlockPool pool(std::numeric_limits<std::int32_t>::max());
  pool.hold({5, 3});
  for (const std::int32_t expected : {0, 1, 2, 4, 6, 7}) EXPECT_EQ(pool.take(), expected);
  EXPECT_EQ(pool.free_count(), std::numeric_limits<std::int32_t>::max() - 8);
}

TEST(BlockPool, ABlockIsFreeWhenTheLastHolderLetsGo) {
  BlockPool pool(2);
  pool.hold({1});
  pool.hold({1, 0});
  EXPECT_EQ(pool.free_count(), 0);
  pool.give_back(1);
  EXPECT_TRUE(pool.held(1));
  EXPECT_EQ(pool.free_count(), 0);
  pool.give_back(1);
  EXPECT_FALSE(pool.held(1));
  EXPECT_EQ(pool.free_count(), 1);
}

TEST(BlockPool, WhatHasAKeyIsFoundUntilItsBlockIsNeeded) {
  BlockPool pool(3);
  for (int i = 0; i < 3; ++i) pool.take();
  pool.name(0, key(7));
  pool.name(2, key(8));
  EXPECT_EQ(pool.find(key(7)), 0);
  EXPECT_EQ(pool.find(key(9)), std::nullopt);
  for (const std::int32_t id : {2, 1, 0}) pool.give_back(id);
  EXPECT_EQ(pool.free_count(), 3);
  EXPECT_EQ(pool.find(key(8)), 2) << "none holds it, and it is there";

  EXPECT_EQ(pool.take(), 1) << "with nothing in it";
  EXPECT_EQ(pool.take(), 2) << "let go of before the other";
  EXPECT_EQ(pool.find(key(8)), std::nullopt);
  EXPECT_EQ(pool.find(key(7)), 0);
  pool.hold({0});
  EXPECT_EQ(pool.free_count(), 0);
  pool.give_back(0);
  pool.give_back(2);
  EXPECT_EQ(pool.take(), 2) << "it has lost its key";
}

TEST(BlockPool, UsedAgainIsLetGoOfLater) {
  BlockPool pool(2);
  pool.hold({0, 1});
  pool.name(0, key(1));
  pool.name(1, key(2));
  pool.give_back(0);
  pool.give_back(1);
  pool.hold({0});
  pool.give_back(0);
  EXPECT_EQ(pool.take(), 1);
}

TEST(BlockPool, OneBlockAndOneKeyBelongTogether) {
  BlockPool pool(2);
  pool.hold({0, 1});
  pool.name(0, key(5));
  pool.name(1, key(5));
  pool.name(0, key(6));
  EXPECT_EQ(pool.find(key(5)), 0);
  EXPECT_EQ(pool.find(key(6)), std::nullopt);
  pool.name(1, key(5, 1));
  EXPECT_EQ(pool.find(key(5, 1)), 1) << "another lane's";
  pool.give_back(0);
  EXPECT_THROW(pool.name(0, key(9)), Error) << "none fills it";
}

}  // namespace
}  // namespace motley
