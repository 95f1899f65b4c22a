#include "motley/checkpoint/stored_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/checkpoint/quants.hpp"

namespace motley {
namespace {

std::string stored_types() {
  std::string names;
  for (const DTypeRow& row : dtypes())
    if (!row.file_name.empty()) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.file_name);
  return names;
}

// Dimensions of one say nothing: llama.cpp leaves them out.
std::vector<std::int64_t> without_ones(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

// Where a file with interleaved heads of this many rows has a row.
std::int64_t interleaved_place(std::int64_t row, std::int64_t head) {
  const std::int64_t inside = row % head, half = head / 2;
  return row - inside + 2 * (inside % half) + inside / half;
}

}  // namespace

DType stored_type(const Checkpoint::Found& found, const std::string& name) {
  for (const DTypeRow& row : dtypes())
    if (!row.file_name.empty() && row.file_name == found.tensor.type) return row.type;
  throw input_error(fmt::format("{}: {} is of type {}", found.file.string(), name, found.tensor.type),
                    "supported: " + stored_types());
}

StoredRows::StoredRows(const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape)
    : found_(checkpoint.find(name)), type_(stored_type(found_, name)) {
  if (without_ones(found_.tensor.shape) != without_ones(shape))
    throw input_error(fmt::format("the model needs the tensor {} {}, but {} holds {}", name, shape_text(shape),
                                  found_.file.string(), shape_text(found_.tensor.shape)),
                      "config.json and weights must come from the same model");
  width_ = shape.size() > 1 ? shape[1] : 1;
  row_step_ = found_.tensor.row_step > 0 ? found_.tensor.row_step : width_;
  MOTLEY_CHECK(column_step() == 1 || dtype_row(type_).block_values == 1);
  if (found_.scales == nullptr) return;
  const std::vector<std::int64_t> blocks = {shape.front(), width_ / 32};
  if (found_.scales->shape != blocks)
    throw input_error(fmt::format("the model needs exponents of {} {}, but {} holds {}", name, shape_text(blocks),
                                  found_.scales_file->string(), shape_text(found_.scales->shape)),
                      copy_again);
}

const std::byte* StoredRows::at(std::int64_t row, std::int64_t column) const {
  const StoredTensor& tensor = found_.tensor;
  const std::int64_t place = found_.interleaved > 0 ? interleaved_place(row, found_.interleaved)
                             : tensor.run > 0       ? row / tensor.run * tensor.run_step + row % tensor.run
                                                    : row;
  return found_.tensor.bytes.data() + place * bytes_of(type_, row_step_) + bytes_of(type_, column * column_step());
}

// GGUF's blocks: the exponent, then bytes of value i and value 16 + i.
void StoredRows::copy_blocks(std::int64_t row, std::int64_t first, std::int64_t end, std::byte* out) const {
  constexpr std::int64_t values = 32, bytes = 16;
  const StoredTensor& scales = *found_.scales;
  const std::int64_t scale_step = scales.row_step > 0 ? scales.row_step : width_ / values;
  for (std::int64_t block = first / values; block < end / values; ++block) {
    const std::byte* from = found_.tensor.bytes.data() + (row * row_step_ / values + block) * bytes;
    *out++ = scales.bytes[static_cast<std::size_t>(row * scale_step + block)];
    const auto value = [&](std::int64_t i) { return (from[i / 2] >> (i % 2 * 4)) & std::byte{15}; };
    for (std::int64_t i = 0; i < bytes; ++i) *out++ = value(i) | value(bytes + i) << 4;
  }
}

void StoredRows::copy(std::int64_t row, std::int64_t first, std::int64_t end, std::byte* out) const {
  if (found_.scales != nullptr) return copy_blocks(row, first, end, out);
  const std::byte* from = at(row, first);
  if (column_step() == 1) {
    std::copy_n(from, bytes_of(type_, end - first), out);
    return;
  }
  const std::int64_t bytes = bytes_of(type_, 1), step = bytes_of(type_, column_step());
  for (std::int64_t column = first; column < end; ++column, from += step, out += bytes) std::copy_n(from, bytes, out);
}

void StoredRows::values(std::int64_t row, std::int64_t first, std::int64_t end, float* out) const {
  if (column_step() == 1 && found_.scales == nullptr) {
    dequantise_row(type_, at(row, first), end - first, out);
  } else {
    std::vector<std::byte> side_by_side(static_cast<std::size_t>(bytes_of(type_, end - first)));
    copy(row, first, end, side_by_side.data());
    dequantise_row(type_, side_by_side.data(), end - first, out);
  }
  if (found_.added != 0)
    for (std::int64_t i = 0; i < end - first; ++i) out[i] -= found_.added;
  if (found_.minus_exp)
    for (std::int64_t i = 0; i < end - first; ++i) out[i] = std::log(-out[i]);
}

}  // namespace motley
