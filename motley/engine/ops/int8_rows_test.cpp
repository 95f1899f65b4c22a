#include "motley/engine/ops/int8_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

using Values = std::vector<float>;

std::vector<std::byte> encoded(const Values& values) {
  std::vector<std::byte> row(static_cast<std::size_t>(Int8Row{std::ssize(values)}.bytes()));
  encode_int8_row(values, row);
  return row;
}

Values decoded(const std::vector<std::byte>& row, std::size_t values) {
  Values back(values);
  decode_int8_row(row, back);
  return back;
}

Values there_and_back(const Values& values) { return decoded(encoded(values), values.size()); }

Values normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  Values values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

// Exact in bf16.
float outlier(float value) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000U); }

TEST(Int8Rows, TakeSixteenthsMoreThanAByteAValue) {
  EXPECT_EQ(Int8Row{4096}.bytes(), 4256);
  EXPECT_EQ(crossing_bytes(DType::int8, 4096), 4256);
  EXPECT_EQ(crossing_bytes(DType::bf16, 4096), 8192);
  EXPECT_EQ(Int8Row{100}.bytes(), 8 * 4 + 2 * 2 + 100) << "the last block may be shorter";
  EXPECT_EQ(Int8Row{3}.bytes(), 3 * 4 + 2 + 3);
}

TEST(Int8Rows, TheLargestEightAreExactAndTheOthersOffByHalfAScale) {
  for (const std::size_t count : {1, 7, 8, 9, 63, 64, 65, 576, 4096}) {
    SCOPED_TRACE(count);
    Values values = normal(count, static_cast<unsigned>(count));
    const std::size_t outliers = std::min<std::size_t>(8, count);
    for (std::size_t i = 0; i < outliers; ++i)
      values[i * (count / outliers)] = outlier((i % 2 == 0 ? 1000.0F : -900.0F) + static_cast<float>(i) * 4);
    const Values back = there_and_back(values);
    for (std::size_t block = 0; block < count; block += 64) {
      const std::size_t end = std::min(count, block + 64);
      float largest = 0;
      for (std::size_t i = block; i < end; ++i)
        if (std::abs(values[i]) < 100) largest = std::max(largest, std::abs(values[i]));
      for (std::size_t i = block; i < end; ++i) {
        if (std::abs(values[i]) >= 100)
          EXPECT_EQ(back[i], values[i]);
        else
          EXPECT_LE(std::abs(back[i] - values[i]), 0.501F * largest / 127);
      }
    }
  }
}

// An outlier that shared its scale would make the others of its block 0.
TEST(Int8Rows, OutliersCostTheOthersNothing) {
  for (const float size : {1.0F, 60.0F, 1000.0F}) {
    Values values = normal(4096, 3);
    values[17] = size;
    values[3000] = -size;
    const Values back = there_and_back(values);
    double error = 0, power = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i == 17 || i == 3000) continue;
      error += std::pow(back[i] - values[i], 2);
      power += std::pow(values[i], 2);
    }
    EXPECT_LT(std::sqrt(error / power), 0.007) << size;
  }
}

TEST(Int8Rows, ARowIsItsOwn) {
  // encode_int8_row() sees one row; equal rows have equal bytes, and of equal magnitudes the first are exceptions.
  EXPECT_EQ(encoded(normal(576, 1)), encoded(normal(576, 1)));
  const Values equal(80, -2.0F);
  const std::vector<std::byte> row = encoded(equal);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::to_integer<std::size_t>(row[4 * i]), i);
  EXPECT_EQ(there_and_back(equal).front(), -2.0F);
}

TEST(Int8Rows, ZeroAndTinyValues) {
  EXPECT_EQ(there_and_back(Values(64, 0.0F)), Values(64, 0.0F));
  Values tiny = normal(128, 2);
  for (float& value : tiny) value *= 1e-5F;
  const Values back = there_and_back(tiny);
  for (std::size_t i = 0; i < tiny.size(); ++i) EXPECT_NEAR(back[i], tiny[i], 1.5e-7F);  // fp16 has steps of 6e-8 here
}

TEST(Int8Rows, WhatIsNotFiniteStaysSo) {
  const float infinity = std::numeric_limits<float>::infinity();
  Values values = normal(192, 4);
  values[5] = infinity;
  values[70] = -infinity;
  values[71] = std::numeric_limits<float>::quiet_NaN();
  const Values back = there_and_back(values);
  EXPECT_EQ(back[5], infinity);
  EXPECT_EQ(back[70], -infinity);
  EXPECT_TRUE(std::isnan(back[71]));
  EXPECT_EQ(std::ranges::count_if(back, [](float value) { return std::isfinite(value); }), 189);

  for (std::size_t i = 64; i < 74; ++i) values[i] = infinity;  // more than exceptions: 5, and seven of these
  const Values poisoned = there_and_back(values);
  EXPECT_TRUE(std::isfinite(poisoned[6])) << "another block";
  EXPECT_EQ(poisoned[70], infinity);
  EXPECT_TRUE(std::isnan(poisoned[71]));
  EXPECT_TRUE(std::isnan(poisoned[100]));
}

TEST(Int8Rows, ValuesBeyondTheLargestScaleAreNotHidden) {
  EXPECT_NEAR(there_and_back(Values(64, 8.0e6F))[63], 8.0e6F, 1e5F);
  EXPECT_TRUE(std::isnan(there_and_back(Values(64, 1.0e7F))[63]));
}

TEST(Int8Rows, PlacesThatDoNotAscendInsideTheRowAreAPeersError) {
  const std::vector<std::byte> row = encoded(normal(100, 6));
  const auto refused = [&](std::size_t exception, std::uint16_t place) {
    std::vector<std::byte> spoilt = row;
    std::memcpy(spoilt.data() + 4 * exception, &place, sizeof place);
    try {
      decoded(spoilt, 100);
    } catch (const Error& error) {
      return error.code() == ErrorCode::peer;
    }
    return false;
  };
  EXPECT_TRUE(refused(7, 100));
  EXPECT_TRUE(refused(7, 65535));
  EXPECT_TRUE(refused(1, 0));
  EXPECT_FALSE(refused(7, 99));
}

TEST(ActivationTypes, AreThoseThatWorkersSend) {
  Architecture arch;
  arch.hidden = 1 << 16;
  for (const DType type : {DType::fp32, DType::bf16, DType::int8}) EXPECT_NO_THROW(check_activation_type(arch, type));
  for (const DType type : {DType::fp16, DType::int4, DType::q8_0, DType::file})
    EXPECT_THROW(check_activation_type(arch, type), Error);
  arch.hidden += 1;
  EXPECT_THROW(check_activation_type(arch, DType::int8), Error);
}

}  // namespace
}  // namespace motley
