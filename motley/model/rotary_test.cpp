#include "motley/model/rotary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

// Of Llama 3.1: 8192 positions at first, waves of up to a quarter of that are kept.
const Rotary llama31{.theta = 500000, .scaling = RotaryScaling::llama3, .factor = 8, .original_context = 8192};

TEST(Llama3Rule, SlowsLongWavesAndKeepsShortOnes) {
  EXPECT_EQ(llama3_kept_share(llama31, 100), 1);
  EXPECT_EQ(llama3_kept_share(llama31, 2048), 1);
  EXPECT_NEAR(llama3_kept_share(llama31, 8192 / 2.5), 0.5, 1e-12);
  EXPECT_EQ(llama3_kept_share(llama31, 8192), 0);
  EXPECT_EQ(llama3_kept_share(llama31, 1e6), 0);
}

// Half of a blended frequency stays, and half becomes an eighth.
TEST(Llama3Rule, DividesTheFrequencyOfEachPair) {
  Rotary rotary = llama31;
  rotary.theta = 8192 / (2.5 * 2 * 3.14159265358979);
  rotary.theta *= rotary.theta;  // the second of two pairs has its root for 2 pi wavelengths
  EXPECT_THAT(llama3_divisors(rotary, 4), ::testing::ElementsAre(1, ::testing::DoubleNear(1 / (0.5 / 8 + 0.5), 1e-9)));
  EXPECT_EQ(llama3_divisors(llama31, 128).size(), 64u);
  EXPECT_EQ(llama3_divisors(llama31, 128).front(), 1);
  EXPECT_EQ(llama3_divisors(llama31, 128).back(), 8);
}

}  // namespace
}  // namespace motley
