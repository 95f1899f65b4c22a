// Files in the GGUF format, as llama.cpp reads them: metadata by key, then tensors by name, shape, type and offset,
// then the tensors' bytes. Versions 2 and 3, little-endian. Files are mapped: only what is copied out is touched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {

// A type of tensors that GGUF files may hold. Rows are whole blocks.
struct GgufType {
  std::uint32_t id;
  std::string_view name;  // "Q4_K"
  std::uint64_t block_values;
  std::uint64_t block_bytes;
};
std::span<const GgufType> gguf_types();
const GgufType* find_gguf_type(std::uint32_t id);       // null: unknown
const GgufType* find_gguf_type(std::string_view name);  // null: unknown

// One file; of a split model, one part. All that its header says is checked before it is believed: counts and lengths
// against the bytes that are left, ranges of tensors inside the file, none overlapping, no key or name twice. Any lie
// is an input error that names file and place.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  // An object of all keys in the file's order. Integers beyond 63 bits are refused; strings are bytes, in any encoding.
  const Value& metadata() const { return metadata_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // All that stands before the tensors' bytes.
  std::span<const std::byte> header() const { return header_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> mapping_;
  std::span<const std::byte> header_;
  Value metadata_;
  std::map<std::string, StoredTensor> tensors_;
};

// Whether a path names a GGUF file: by its extension.
bool is_gguf(const std::filesystem::path& path);

// All parts of the model whose first part (or only file) this is, in order. Throws an input error where a part is
// missing, or where the path names another part than the first.
std::vector<std::unique_ptr<GgufFile>> open_gguf(const std::filesystem::path& path);

}  // namespace motley
