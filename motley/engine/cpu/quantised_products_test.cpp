// Products with quantised weights in every instruction set that this processor runs, against plain loops in double
// precision over the dequantised weights and the inputs as quantised.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "motley/base/quantised_types_test.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/cpu/weight_panels.hpp"

namespace motley {
namespace {

std::vector<float> normal_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.1f, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// A matrix as a file has it, its values, and its panels.
struct QuantisedMatrix {
  DType type;
  std::int64_t outputs, blocks;
  std::vector<std::byte> bytes;
  std::vector<float> values;

  QuantisedMatrix(DType of_type, std::int64_t rows, std::int64_t blocks_of_row)
      : type(of_type), outputs(rows), blocks(blocks_of_row) {
    const std::int64_t inputs = blocks * dtype_row(type).block_values;
    const std::vector<float> from = normal_values(outputs * inputs, 1);
    bytes.resize(static_cast<std::size_t>(outputs * row_bytes()));
    values.resize(from.size());
    for (std::int64_t row = 0; row < outputs; ++row) {
      quantise_row(type, from.data() + row * inputs, inputs, bytes.data() + row * row_bytes());
      dequantise_row(type, bytes.data() + row * row_bytes(), inputs, values.data() + row * inputs);
    }
  }
  std::int64_t row_bytes() const { return blocks * dtype_row(type).block_bytes; }
  std::vector<std::byte> panels(std::int64_t rows) const {
    std::vector<std::byte> laid(bytes.size());
    for (std::int64_t row = 0; row < outputs; row += rows)
      lay_panel(type, bytes.data() + row * row_bytes(), std::min(rows, outputs - row), row_bytes(),
                laid.data() + row * row_bytes());
    return laid;
  }
};

// Inputs as 8 bits of the largest of each 32, counted from `skipped` before the first.
std::vector<double> rounded_inputs(const float* input, std::int64_t inputs, std::int64_t skipped) {
  std::vector<double> rounded(static_cast<std::size_t>(inputs));
  for (std::int64_t first = -skipped; first < inputs; first += 32) {
    const std::int64_t begin = std::max<std::int64_t>(first, 0), end = std::min(first + 32, inputs);
    float largest = 0;
    for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(input[i]));
    for (std::int64_t i = begin; i < end; ++i)
      rounded[static_cast<std::size_t>(i)] =
          largest > 0 ? std::nearbyint(static_cast<double>(input[i] * (127 / largest))) * (largest / 127) : 0;
  }
  return rounded;
}

std::vector<float> product_of(const Product<float>& product, const QuantisedMatrix& matrix, const float* input,
                              std::int64_t tokens, std::int64_t inputs, std::int64_t skipped, const float* bias) {
  const std::vector<std::byte> panels = matrix.panels(product.panel);
  const std::int64_t bytes = product.prepared_bytes(skipped + inputs);
  std::vector<std::byte> prepared(static_cast<std::size_t>(tokens * bytes), std::byte{0xff});
  for (std::int64_t t = 0; t < tokens; ++t)
    product.prepare(input + t * inputs, inputs, 1, inputs, skipped, prepared.data() + t * bytes);
  std::vector<float> out(static_cast<std::size_t>(tokens * matrix.outputs), NAN);
  const LinearTask<float> task{prepared.data(), bytes,  panels.data(),    bias,          out.data(),
                               matrix.outputs,  tokens, skipped + inputs, matrix.outputs};
  product.multiply(task, 0, 16);
  product.multiply(task, 16, matrix.outputs);
  return out;
}

template <class Check>
void for_each_product(const Check& check) {
  for (const CpuKernels<float>* kernels : all_cpu_kernels<float>())
    for (const DType type : quantised_types) {
      SCOPED_TRACE(::testing::Message() << kernels->instructions << ", " << dtype_row(type).name);
      const Product<float>* product = kernels->product(type);
      ASSERT_NE(product, nullptr);
      check(type, *product);
    }
}

// Rows that do not fill a panel; inputs that begin and end inside of blocks.
TEST(QuantisedProducts, EqualTheDotProducts) {
  for_each_product([](DType type, const Product<float>& product) {
    const std::int64_t outputs = 37, blocks = 3, values = dtype_row(type).block_values;
    const QuantisedMatrix matrix(type, outputs, blocks);
    const std::vector<float> bias = normal_values(outputs, 3);
    for (const auto& [skipped, missing] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 11}, {13, 0}, {16, 16}})
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 9}) {
        const std::int64_t inputs = blocks * values - skipped - missing;
        const std::vector<float> x = normal_values(tokens * inputs, 2);
        const std::vector<float> y = product_of(product, matrix, x.data(), tokens, inputs, skipped, bias.data());
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::vector<double> rounded = rounded_inputs(x.data() + t * inputs, inputs, skipped);
          for (std::int64_t n = 0; n < outputs; ++n) {
            double expected = bias[static_cast<std::size_t>(n)], size = std::abs(expected);
            for (std::int64_t k = 0; k < inputs; ++k) {
              const double term = rounded[static_cast<std::size_t>(k)] *
                                  matrix.values[static_cast<std::size_t>(n * blocks * values + skipped + k)];
              expected += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(y[static_cast<std::size_t>(t * outputs + n)], expected, 1e-5 * size)
                << tokens << " tokens, " << skipped << " skipped, " << missing << " missing, row " << n;
          }
        }
      }
  });
}

// The largest values that there are: sums in 16 bits must hold them.
TEST(QuantisedProducts, DoNotOverflow) {
  for_each_product([](DType type, const Product<float>& product) {
    QuantisedMatrix matrix(type, 32, 1);
    const std::int64_t inputs = dtype_row(type).block_values;
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> extreme(static_cast<std::size_t>(inputs), sign * 3);
      for (std::size_t i = 1; i < extreme.size(); i += 2) extreme[i] = i % 4 == 1 ? sign * 3 : sign * 2.9f;
      for (std::int64_t row = 0; row < matrix.outputs; ++row) {
        quantise_row(type, extreme.data(), inputs, matrix.bytes.data() + row * matrix.row_bytes());
        dequantise_row(type, matrix.bytes.data() + row * matrix.row_bytes(), inputs,
                       matrix.values.data() + row * inputs);
      }
      const std::vector<float> x(static_cast<std::size_t>(inputs), 5);
      double expected = 0;
      for (std::int64_t k = 0; k < inputs; ++k) expected += 5.0 * matrix.values[static_cast<std::size_t>(k)];
      for (const float y : product_of(product, matrix, x.data(), 1, inputs, 0, nullptr))
        ASSERT_NEAR(y, expected, 1e-5 * std::abs(expected));
    }
  });
}

// To the bit: a token's row is the same whatever else is in the batch.
TEST(QuantisedProducts, DoNotDependOnTheBatch) {
  for_each_product([](DType type, const Product<float>& product) {
    const QuantisedMatrix matrix(type, 43, 2);
    const std::int64_t inputs = 2 * dtype_row(type).block_values, most = 64;
    const std::vector<float> x = normal_values(most * inputs, 4);
    const std::vector<float> together = product_of(product, matrix, x.data(), most, inputs, 0, nullptr);
    for (const std::int64_t tokens : {1, 2, 3, 6, 7, 16, 21})
      for (std::int64_t first = 0; first + tokens <= most; first += 17) {
        const std::vector<float> some =
            product_of(product, matrix, x.data() + first * inputs, tokens, inputs, 0, nullptr);
        for (std::size_t i = 0; i < some.size(); ++i)
          ASSERT_EQ(some[i], together[static_cast<std::size_t>(first * matrix.outputs) + i]) << tokens << " tokens";
      }
  });
}

TEST(QuantPanels, GiveTheirRowsBack) {
  for (const DType type : quantised_types)
    for (const std::int64_t rows : {1, 3, 8}) {
      const QuantisedMatrix matrix(type, rows, 2);
      std::vector<std::byte> back(matrix.bytes.size());
      const std::vector<std::byte> panel = matrix.panels(rows);
      unlay_panel(type, panel.data(), rows, matrix.row_bytes(), back.data());
      EXPECT_EQ(back, matrix.bytes) << dtype_row(type).name;
    }
}

}  // namespace
}  // namespace motley
