#include "motley/checkpoint/stored_rows.hpp"

#include <fmt/format.h>

#include "motley/checkpoint/quants.hpp"

namespace motley {
namespace {

std::string stored_types() {
  std::string names;
  for (const DTypeRow& row : dtypes())
    if (!row.file_name.empty()) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.file_name);
  return names;
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
  if (found_.tensor.shape != shape)
    throw input_error(fmt::format("the model needs the tensor {} {}, but {} holds {}", name, shape_text(shape),
                                  found_.file.string(), shape_text(found_.tensor.shape)),
                      "config.json and weights must come from the same model");
  width_ = shape.size() > 1 ? shape[1] : 1;
}

const std::byte* StoredRows::at(std::int64_t row, std::int64_t column) const {
  const std::int64_t place = in_order() ? row : interleaved_place(row, found_.interleaved);
  return found_.tensor.bytes.data() + place * bytes_of(type_, width_) + bytes_of(type_, column);
}

void StoredRows::values(std::int64_t row, std::int64_t first, std::int64_t end, float* out) const {
  dequantise_row(type_, at(row, first), end - first, out);
}

}  // namespace motley
