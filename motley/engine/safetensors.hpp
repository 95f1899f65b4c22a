// Reading checkpoints in the safetensors format: 8 bytes little-endian length of a JSON header, the header (name ->
// dtype, shape, byte range), the tensors' bytes. Files are mapped, not read: only what is copied out is touched.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/model/model.hpp"

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

// All tensors of a model folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.
class Checkpoint {
 public:
  explicit Checkpoint(std::filesystem::path folder);

  // Copies the slice of a tensor into `to` (any device; fp32 or bf16; as many elements as the slice). The tensor may
  // stand under its name with or without a leading "model.", as base models are saved. Throws an input error where it
  // is missing, or is of another shape than `tensor` promises, or of a type other than F32, BF16 and F16.
  void read(const TensorSpec& tensor, const Slice& slice, at::Tensor to) const;

 private:
  struct Found {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  Found find(const TensorSpec& tensor) const;

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // by file name
  std::map<std::string, std::string> file_of_;                     // tensor -> file name
};

}  // namespace motley
