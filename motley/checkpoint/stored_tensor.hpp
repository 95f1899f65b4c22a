// What files of weights have in common: mapped bytes, and tensors that are ranges of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/mapping_guard.hpp"

namespace motley {

// A file mapped read-only, unmapped with the last reference.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // throws an input error
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::optional<MappingGuard> guard_;
};

// What to do about a file that contradicts itself.
constexpr const char* copy_again = "the file is damaged: copy or download it again";

std::string shape_text(const std::vector<std::int64_t>& shape);  // "4x128"

struct StoredTensor {
  std::string type;                 // as the file spells it: "F32", "BF16", "Q4_K", ...
  std::vector<std::int64_t> shape;  // the slowest dimension first: rows, columns
  std::span<const std::byte> bytes;
  std::uint64_t offset = 0;  // of the bytes in their file
  // Values from a row (a vector's value) to the next, and from a column to the next. 0: rows follow one another.
  std::int64_t row_step = 0, column_step = 1;
  // Rows come in runs of `run`, each of which begins `run_step` rows behind the one before. 0: all follow one another.
  std::int64_t run = 0, run_step = 0;
  bool scales_apart = false;  // of blocks of MXFP4, as Hugging Face's files have them (packed_tensors.hpp)
};

// Throws an input error that names two tensors whose bytes overlap, where there are such.
void check_no_overlap(const std::map<std::string, StoredTensor>& tensors, const std::filesystem::path& path);

}  // namespace motley
