// The tensors of a model folder by name, as ranges of bytes in mapped files. No Torch: who computes maps what it finds.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "motley/checkpoint/safetensors.hpp"

namespace motley {

// All tensors of a model folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  struct Found {
    const std::filesystem::path& file;
    const StoredTensor& tensor;
  };
  // The name may be stored with or without a leading "model.", as base models are saved. Throws an input error that
  // names the file where the tensor is missing. The result is valid as long as this checkpoint.
  Found find(const std::string& name) const;

 private:
  std::filesystem::path contents_;                                 // the file that lists all tensors
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // by file name
  std::map<std::string, std::string> file_of_;                     // tensor -> file name
};

}  // namespace motley
