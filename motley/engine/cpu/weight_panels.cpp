#include "motley/engine/cpu/weight_panels.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "motley/base/error.hpp"

namespace motley {
namespace {

// A stretch of a block: `units` of `unit` bytes each stay together. Fifth bits of a block of 32 are stirred, too.
struct Part {
  int units, unit;
  bool fifth_bits = false;
};

std::span<const Part> parts_of(DType type) {
  static constexpr Part q8_0[] = {{1, 2}, {8, 4}}, q4_0[] = {{1, 2}, {4, 4}}, q4_1[] = {{2, 2}, {4, 4}},
                        q5_0[] = {{1, 2}, {1, 4, true}, {4, 4}}, q5_1[] = {{2, 2}, {1, 4, true}, {4, 4}},
                        q4_k[] = {{2, 2}, {12, 1}, {32, 4}}, q5_k[] = {{2, 2}, {12, 1}, {8, 4}, {32, 4}},
                        q6_k[] = {{32, 4}, {16, 4}, {16, 1}, {1, 2}}, mxfp4[] = {{1, 1}, {4, 4}},
                        iq4_nl[] = {{1, 2}, {4, 4}}, iq4_xs[] = {{2, 2}, {1, 4}, {32, 4}};
  switch (type) {
    case DType::q8_0: return q8_0;
    case DType::q4_0: return q4_0;
    case DType::q4_1: return q4_1;
    case DType::q5_0: return q5_0;
    case DType::q5_1: return q5_1;
    case DType::q4_k: return q4_k;
    case DType::q5_k: return q5_k;
    case DType::q6_k: return q6_k;
    case DType::mxfp4: return mxfp4;
    case DType::iq4_nl: return iq4_nl;
    case DType::iq4_xs: return iq4_xs;
    default: throw Error(ErrorCode::internal, "not a quantised type");
  }
}

void copy_unit(const Part& part, const std::byte* from, std::byte* to, bool to_panel) {
  if (!part.fifth_bits) {
    std::memcpy(to, from, static_cast<std::size_t>(part.unit));
    return;
  }
  std::uint32_t bits = 0, moved = 0;
  std::memcpy(&bits, from, sizeof bits);
  for (int value = 0; value < 32; ++value) {
    const int in_panel = value % 4 * 8 + value / 4;
    moved |= (bits >> (to_panel ? value : in_panel) & 1) << (to_panel ? in_panel : value);
  }
  std::memcpy(to, &moved, sizeof moved);
}

// Calls step(part, where in the row's block, where in the panel's) for each unit of a row's part of a block.
template <class Step>
void for_units(std::span<const Part> parts, std::int64_t rows, std::int64_t row, const Step& step) {
  std::int64_t before = 0;  // in a row's block
  for (const Part& part : parts)
    for (int i = 0; i < part.units; ++i, before += part.unit) step(part, before, before * rows + row * part.unit);
}

// Calls step(part, where in the row, where in the panel) for each unit of a row.
template <class Step>
void for_row(DType type, std::int64_t rows, std::int64_t row_bytes, std::int64_t row, const Step& step) {
  if (!is_quantised(type)) {
    constexpr int line = 64;
    for (std::int64_t at = 0; at < row_bytes; at += line) {
      const int bytes = static_cast<int>(std::min<std::int64_t>(line, row_bytes - at));
      step(Part{1, bytes}, at, at * rows + row * bytes);
    }
    return;
  }
  const std::int64_t bytes = dtype_row(type).block_bytes;
  const std::span<const Part> parts = parts_of(type);
  for (std::int64_t block = 0; block < row_bytes; block += bytes)
    for_units(parts, rows, row, [&](const Part& part, std::int64_t in_row, std::int64_t in_panel) {
      step(part, block + in_row, block * rows + in_panel);
    });
}

}  // namespace

void lay_panel(DType type, const std::byte* from, std::int64_t rows, std::int64_t row_bytes, std::byte* panel) {
  for (std::int64_t row = 0; row < rows; ++row)
    for_row(type, rows, row_bytes, row, [&](const Part& part, std::int64_t in_row, std::int64_t in_panel) {
      copy_unit(part, from + row * row_bytes + in_row, panel + in_panel, true);
    });
}

void row_of_panel(DType type, const std::byte* panel, std::int64_t rows, std::int64_t row_bytes, std::int64_t row,
                  std::byte* to) {
  for_row(type, rows, row_bytes, row, [&](const Part& part, std::int64_t in_row, std::int64_t in_panel) {
    copy_unit(part, panel + in_panel, to + in_row, false);
  });
}

void unlay_panel(DType type, const std::byte* panel, std::int64_t rows, std::int64_t row_bytes, std::byte* to) {
  for (std::int64_t row = 0; row < rows; ++row) row_of_panel(type, panel, rows, row_bytes, row, to + row * row_bytes);
}

}  // namespace motley
