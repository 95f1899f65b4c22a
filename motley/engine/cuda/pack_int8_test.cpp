// Rows packed into 8 bits by the source of the kernel, run on the processor, against encode_int8_row().
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "motley/engine/cuda/int8_rows.cuh"
#include "motley/engine/cuda/kernels_test.hpp"
#include "motley/engine/ops/int8_rows.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley::cuda {
namespace {

// What a model's rows have, and what they should not: equal values, outliers, tiny and huge ones, some that are not
// finite or whole blocks of them.
float value_of_kind(int kind) {
  const float x = random_float();
  switch (kind) {
    case 0: return x;
    case 1: return one_in(30) ? 300 * x : x;
    case 2: return std::round(2 * x) / 2;
    case 3: return x * std::exp2(static_cast<float>(between(-149, 30)));
    case 4: return x * 3e6f;
    case 5: return 0;
    default: break;
  }
  const std::array strange{static_cast<float>(infinity),
                           -static_cast<float>(infinity),
                           not_a_number,
                           -0.0f,
                           std::bit_cast<float>(0xff812345U),
                           std::bit_cast<float>(between(1, 0x7fffff))};
  return one_in(kind == 6 ? 40 : 3) ? strange[static_cast<std::size_t>(between(0, 5))] : x;
}

template <class T>
T element_with(float value) {
  if constexpr (sizeof(T) == 4)
    return value;
  else  // by its bits, so that a NaN keeps its own
    return __ushort_as_bfloat16(static_cast<unsigned short>(std::bit_cast<unsigned>(value) >> 16));
}

float exactly(float value) { return value; }
float exactly(Bf16 value) { return std::bit_cast<float>(static_cast<unsigned>(__bfloat16_as_ushort(value)) << 16); }

TEST(PackInt8, HasTheBytesOfTheHostsRows) {
  int rows_done = 0;
  for_elements(420, [&]<class T>() {
    const auto rows = static_cast<std::size_t>(between(3, 7));
    const auto columns = static_cast<std::size_t>(one_in(50) ? between(2000, 5000) : random_columns() % 1000 + 1);
    const auto row_bytes = static_cast<std::size_t>(Int8Row{static_cast<std::int64_t>(columns)}.bytes());
    Array<T> values(rows * columns);
    for (std::size_t row = 0; row < rows; ++row) {
      const int kind = between(0, 7);
      for (std::size_t i = 0; i < columns; ++i) values.data()[row * columns + i] = element_with<T>(value_of_kind(kind));
    }
    constexpr std::byte untouched{0xA5};
    std::vector<std::byte> packed(rows * row_bytes + 1, untouched), expected = packed;
    ASSERT_EQ(0, pack_int8({.element = element_of<T>,
                            .values = values.data(),
                            .rows = static_cast<std::int64_t>(rows),
                            .columns = static_cast<std::int64_t>(columns),
                            .packed = packed.data()},
                           nullptr));
    std::vector<float> row_values(columns);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < columns; ++i) row_values[i] = exactly(values.data()[row * columns + i]);
      encode_int8_row(row_values, std::span(expected).subspan(row * row_bytes, row_bytes));
    }
    for (std::size_t i = 0; i < packed.size(); ++i)
      ASSERT_EQ(packed[i], expected[i]) << columns << " columns, byte " << i % row_bytes << " of row " << i / row_bytes;
    rows_done += static_cast<int>(rows);
  });
  EXPECT_GE(rows_done, 2000);
}

TEST(PackInt8, TakesTheLongestRowAndNoLonger) {
  const auto columns = static_cast<std::size_t>(most_packed_columns);
  std::vector<float> values(columns, 1);
  values.back() = -7;
  std::vector<std::byte> packed(static_cast<std::size_t>(Int8Row{most_packed_columns}.bytes())), expected = packed;
  PackTask task{.element = Element::fp32,
                .values = values.data(),
                .rows = 1,
                .columns = most_packed_columns,
                .packed = packed.data()};
  ASSERT_EQ(0, pack_int8(task, nullptr));
  encode_int8_row(values, expected);
  EXPECT_TRUE(packed == expected);
  ++task.columns;
  EXPECT_NE(0, pack_int8(task, nullptr));
}

}  // namespace
}  // namespace motley::cuda
