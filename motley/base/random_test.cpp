#include "motley/base/random.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32 with ten rounds.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, StaysInRangeAndHasTheRightMean) {
  double sum = 0;
  constexpr int draws = 100000;
  for (int i = 0; i < draws; ++i) {
    const double u = uniform_at(7, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / draws, 0.5, 5 * 0.2887 / 316.2);  // five standard errors
}

TEST(Uniform, DependsOnEveryBitOfSeedAndIndex) {
  EXPECT_EQ(uniform_at(1, 2), uniform_at(1, 2));
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(uniform_at(1, 2), uniform_at(1 ^ (std::uint64_t{1} << bit), 2));
    EXPECT_NE(uniform_at(1, 2), uniform_at(1, 2 ^ (std::uint64_t{1} << bit)));
  }
}

TEST(RandomStream, SkipsTheFirstAndKeepsApartFromItsNeighbours) {
  RandomStream whole(7, 1), rest(7, 1, 3), other(7, 2);
  for (int i = 0; i < 3; ++i) EXPECT_NE(whole.uniform(), other.uniform());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(whole.uniform(), rest.uniform());
}

TEST(RandomStream, ChancesAreWhatTheySay) {
  RandomStream random(7, 0);
  int hits = 0;
  constexpr int draws = 10000;
  for (int i = 0; i < draws; ++i) {
    EXPECT_FALSE(random.chance(0));
    EXPECT_TRUE(random.chance(1));
    hits += random.chance(0.25);
    EXPECT_LT(random.below(3), 3);
  }
  EXPECT_NEAR(hits, 0.25 * draws, 5 * 43.3);  // five standard errors
}

}  // namespace
}  // namespace motley
