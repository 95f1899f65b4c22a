// The tensors of a model folder, by the names that the model's description gives them.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "motley/engine/safetensors.hpp"
#include "motley/model/model.hpp"

namespace motley {

// All tensors of a model folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

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

  std::filesystem::path contents_;                                 // the file that lists all tensors
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // by file name
  std::map<std::string, std::string> file_of_;                     // tensor -> file name
};

}  // namespace motley
