#include "motley/checkpoint/quants.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "motley/base/quantised_types_test.hpp"
#include "motley/checkpoint/gguf.hpp"

namespace motley {
namespace {

// tests/reference/quant_goldens.py: what the pip package `gguf` computes.
const GgufFile& goldens() {
  static const GgufFile file(MOTLEY_SOURCE_DIR "/tests/data/quants.gguf");
  return file;
}

std::vector<float> floats(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

DType dtype_of(std::string_view stored) {
  for (const DTypeRow& row : dtypes())
    if (row.file_name == stored) return row.type;
  return DType::fp8;
}

TEST(Quants, DequantiseAsTheReferenceBitForBit) {
  for (const char* name :
       {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_NL", "IQ4_XS", "F16", "BF16"}) {
    const StoredTensor& blocks = goldens().tensors().at(name);
    const std::vector<float> expected = floats(goldens().tensors().at(std::string(name) + ".values"));
    ASSERT_EQ(static_cast<std::int64_t>(expected.size()), blocks.shape.back());
    std::vector<float> values(expected.size());
    dequantise_row(dtype_of(blocks.type), blocks.bytes.data(), blocks.shape.back(), values.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_TRUE(same_bits(values[i], expected[i])) << name << " " << i << ": " << values[i] << " " << expected[i];
  }
}

TEST(Quants, QuantiseAsTheReferenceBitForBit) {
  const StoredTensor& input = goldens().tensors().at("input");
  const std::vector<float> values = floats(input);
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "F16", "BF16"}) {
    const StoredTensor& expected = goldens().tensors().at(std::string(name) + ".made");
    std::vector<std::byte> made(expected.bytes.size());
    const std::size_t row_bytes = made.size() / static_cast<std::size_t>(input.shape[0]);
    for (std::int64_t row = 0; row < input.shape[0]; ++row)
      quantise_row(dtype_of(name), values.data() + row * input.shape[1], input.shape[1],
                   made.data() + static_cast<std::size_t>(row) * row_bytes);
    for (std::size_t i = 0; i < made.size(); ++i)
      ASSERT_EQ(made[i], expected.bytes[i]) << name << " row " << i / row_bytes << " byte " << i % row_bytes;
  }
}

TEST(Quants, RowsMayEndInsideABlock) {
  const StoredTensor& blocks = goldens().tensors().at("Q6_K");
  std::vector<float> whole(256), part(100, 7);
  dequantise_row(DType::q6_k, blocks.bytes.data(), 256, whole.data());
  dequantise_row(DType::q6_k, blocks.bytes.data(), 99, part.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end() - 1, whole.begin()));
  EXPECT_EQ(part.back(), 7);
}

TEST(Quants, HalvesGoThereAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0) continue;  // not a number
    ASSERT_EQ(float_to_half(half_to_float(half)), half);
  }
  EXPECT_EQ(float_to_half(65519.99F), 0x7bff);
  EXPECT_EQ(float_to_half(65520), 0x7c00);
  EXPECT_EQ(float_to_half(0x1p-25F), 0);  // a tie, to even
  EXPECT_EQ(float_to_half(0x1.8p-25F), 1);
}

// Root mean square error over that of values drawn from a normal distribution.
double relative_error(DType type, const std::vector<float>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::byte> row(static_cast<std::size_t>(bytes_of(type, count)));
  std::vector<float> back(values.size());
  quantise_row(type, values.data(), count, row.data());
  dequantise_row(type, row.data(), count, back.data());
  double error = 0, square = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(values[i] - back[i], 2);
    square += std::pow(values[i], 2);
  }
  return std::sqrt(error / square);
}

// Bounds: what ggml_quantize_chunk() of llama.cpp 0.3.36 (of llama-cpp-python) leaves on these very values.
TEST(Quants, TypesThatAreSearchedForLeaveAsLittleErrorAsTheReference) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(256 * 64);
  for (float& value : values) value = normal(random);
  EXPECT_LT(relative_error(DType::q4_k, values), 0.0714);
  EXPECT_LT(relative_error(DType::q5_k, values), 0.0361);
  EXPECT_LT(relative_error(DType::q6_k, values), 0.0179);
  EXPECT_LT(relative_error(DType::iq4_nl, values), 0.0765);
  EXPECT_LT(relative_error(DType::iq4_xs, values), 0.077);
}

// With a scale and a minimum of 16 bits each: half a step of 15, and what rounding these two adds.
TEST(Quants, FourBitsWithAMinimumStayWithinHalfAStep) {
  constexpr std::int64_t group = 32;
  std::vector<float> constant(group, -0.3F), negative(group), mixed(group), steps(group);
  for (int i = 0; i < group; ++i) {
    const auto at = static_cast<std::size_t>(i);
    negative[at] = -1 - 0.1F * static_cast<float>(i);
    mixed[at] = std::sin(static_cast<float>(i));
    steps[at] = static_cast<float>(i % 16);
  }
  for (const auto& values : {constant, negative, mixed, steps}) {
    ASSERT_EQ(bytes_of(DType::q4_1, group), group / 2 + 2 * 2);
    std::vector<std::byte> block(static_cast<std::size_t>(bytes_of(DType::q4_1, group)));
    std::vector<float> back(values.size());
    quantise_row(DType::q4_1, values.data(), group, block.data());
    dequantise_row(DType::q4_1, block.data(), group, back.data());
    const auto [least, most] = std::ranges::minmax(values);
    const float rounding = (std::abs(least) + (most - least)) * 0x1p-11F;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::abs(back[i] - values[i]), (most - least) / 30 + rounding) << values[i];
  }
}

TEST(Quants, ExtremeRowsStayFinite) {
  std::vector<float> zeros(256), ones(256, 1), tiny(256, 1e-30F), single(256), falling(256);
  single[100] = -3;
  for (int i = 0; i < 256; ++i) falling[static_cast<std::size_t>(i)] = static_cast<float>(-i);
  for (const DType type : quantised_types) {
    // Half of the widest gap between codes; of mxfp4 what is cut off between three and four times a power of two.
    const float bound = type == DType::mxfp4 ? 0.25F : type == DType::iq4_nl || type == DType::iq4_xs ? 0.1F : 0.08F;
    for (const auto& values : {zeros, ones, tiny, single, falling}) {
      std::vector<std::byte> row(static_cast<std::size_t>(bytes_of(type, 256)));
      std::vector<float> back(256);
      quantise_row(type, values.data(), 256, row.data());
      dequantise_row(type, row.data(), 256, back.data());
      float most = 0;
      for (std::size_t i = 0; i < 256; ++i) most = std::max(most, std::abs(values[i]));
      for (std::size_t i = 0; i < 256; ++i)
        ASSERT_LE(std::abs(back[i] - values[i]), bound * most + 1e-29F) << name_of(type) << " " << i;
    }
  }
}

}  // namespace
}  // namespace motley
