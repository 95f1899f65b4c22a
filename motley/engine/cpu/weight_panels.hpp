// Rows of a matrix interleaved by panels, as kernels read them: as many rows at a time as a vector has lanes, or a tile
// of the processor rows.
//
// A block of a panel of a quantised type holds the blocks of its rows, part by part: the scales of all rows, then the
// first four bytes of quantised values of each row, then the next four, and so on. Of q5_0 and q5_1 the fifth bits
// change places: bit s of byte i belongs to value 4 s + i. A panel of bf16 holds the first 64 bytes of each row, then
// the next, and at the end what remains. The last panel of a matrix may have fewer rows. The bytes stay as many.
#pragma once

#include <cstddef>
#include <cstdint>

#include "motley/base/dtype.hpp"

namespace motley {

// A panel from `rows` rows of `row_bytes` each that lie one after the other, and back.
void lay_panel(DType type, const std::byte* from, std::int64_t rows, std::int64_t row_bytes, std::byte* panel);
void unlay_panel(DType type, const std::byte* panel, std::int64_t rows, std::int64_t row_bytes, std::byte* to);

// One row of a panel, as it lies in a file.
void row_of_panel(DType type, const std::byte* panel, std::int64_t rows, std::int64_t row_bytes, std::int64_t row,
                  std::byte* to);

}  // namespace motley
