// Files in the safetensors format: 8 bytes little-endian length of a JSON header, the header (name ->
// dtype, shape, byte range), the tensors' bytes. Files are mapped, not read: only what is copied out is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "4x128"

struct StoredTensor {
  std::string type;  // as the file spells it: "F32", "BF16", "F16", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// One file. Everything its header says is checked before it is believed: the header's length, shape x element size =
// range, ranges inside the file, no two overlapping. Any lie is an input error that names file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<MappedFile> mapping_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace motley
