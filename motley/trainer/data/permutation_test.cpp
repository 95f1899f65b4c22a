#include "motley/trainer/data/permutation.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace motley {
namespace {

std::vector<std::int64_t> order(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) places[static_cast<std::size_t>(i)] = permuted(i, count, seed, epoch);
  return places;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::ranges::sort(values);
  return values;
}

std::vector<std::int64_t> identity(std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return values;
}

TEST(Permutation, IsABijection) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 8, 9, 1000, 4096, 4097})
    for (const std::uint64_t epoch : {0, 1, 7}) EXPECT_EQ(sorted(order(count, 3, epoch)), identity(count)) << count;
  EXPECT_TRUE(rc::check([] {
    const auto count = *rc::gen::inRange<std::int64_t>(1, 300);
    RC_ASSERT(sorted(order(count, *rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint64_t>())) ==
              identity(count));
  }));
}

TEST(Permutation, DiffersBetweenEpochsAndSeeds) {
  const auto first = order(1000, 0, 0);
  EXPECT_NE(first, identity(1000));
  EXPECT_NE(first, order(1000, 0, 1));
  EXPECT_NE(first, order(1000, 1, 0));
  EXPECT_NE(order(1000, 0, 1), order(1000, 1, 0));
  EXPECT_NE(first, order(1000, std::uint64_t{1} << 32, 0));
  EXPECT_NE(first, order(1000, 0, std::uint64_t{1} << 32));
}

// Both orders of two records come, and each of three records comes first about as often.
TEST(Permutation, IsEvenWhereItIsSmall) {
  int swapped = 0;
  std::vector<int> firsts(3);
  for (std::uint64_t epoch = 0; epoch < 3000; ++epoch) {
    swapped += permuted(0, 2, 5, epoch) == 1;
    ++firsts[static_cast<std::size_t>(permuted(0, 3, 5, epoch))];
  }
  EXPECT_NEAR(swapped, 1500, 150);
  for (const int count : firsts) EXPECT_NEAR(count, 1000, 130);
}

TEST(Permutation, TakesAnyCount) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t place : {std::int64_t{0}, most / 2, most - 1}) {
    EXPECT_GE(permuted(place, most, 1, 1), 0);
    EXPECT_LT(permuted(place, most, 1, 1), most);
  }
}

// A run that goes on from a checkpoint needs the order that it began with.
TEST(Permutation, StaysWhatItWas) { EXPECT_THAT(order(10, 1, 2), testing::ElementsAre(7, 3, 9, 1, 2, 6, 4, 8, 5, 0)); }

}  // namespace
}  // namespace motley
