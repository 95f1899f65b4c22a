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
  bool in_order() const { return found_.interleaved == 0; }  // one behind the other, as they are stored

  // From `column` on, which begins a block.
  const std::byte* at(std::int64_t row, std::int64_t column) const;
  // Columns [first, end) of a row; `first` begins a block.
  void values(std::int64_t row, std::int64_t first, std::int64_t end, float* out) const;

 private:
  Checkpoint::Found found_;
  DType type_;
  std::int64_t width_ = 1;
};

}  // namespace motley
