// The rows of a stored tensor in Hugging Face's order, whatever they are stored as.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/dtype.hpp"
#include "motley/checkpoint/checkpoint.hpp"

namespace motley {

// The type of a stored tensor. Throws an input error for one that is not read.
DType stored_type(const Checkpoint::Found& found, const std::string& name);

// Tensors of F32, BF16, F16 and GGUF's quantised types; a vector has rows of one value. Valid as long as the
// checkpoint.
class StoredRows {
 public:
  // Throws an input error where the checkpoint has no tensor of this name, or one of another shape or type.
  StoredRows(const Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape);

  DType type() const { return type_; }
  std::int64_t width() const { return width_; }
  // Whether they are stored as they are: in this order, with these values.
  bool as_stored() const { return found_.interleaved == 0 && found_.tensor.run == 0 && unchanged(); }
  // Whether the values are.
  bool unchanged() const { return found_.added == 0 && !found_.minus_exp; }
  // Values from a row to the next, where that is so, and from a column to the next.
  std::int64_t row_step() const { return row_step_; }
  std::int64_t column_step() const { return found_.tensor.column_step; }

  // From `column` on, which begins a block.
  const std::byte* at(std::int64_t row, std::int64_t column) const;
  // Columns [first, end) of a row, as the type has them; `first` begins a block. Not of values that are stored
  // otherwise.
  void copy(std::int64_t row, std::int64_t first, std::int64_t end, std::byte* out) const;
  // Columns [first, end) of a row; `first` begins a block.
  void values(std::int64_t row, std::int64_t first, std::int64_t end, float* out) const;

 private:
  void copy_blocks(std::int64_t row, std::int64_t first, std::int64_t end, std::byte* out) const;

  Checkpoint::Found found_;
  DType type_;
  std::int64_t width_ = 1, row_step_ = 1;
};

}  // namespace motley
