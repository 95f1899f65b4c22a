// The tensors of a model by name, as ranges of bytes in mapped files. No Torch: who computes maps what it finds.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/checkpoint/gguf.hpp"
#include "motley/checkpoint/gguf_names.hpp"
#include "motley/checkpoint/safetensors.hpp"

namespace motley {

// All tensors of a model: those of a folder with `model.safetensors`, or with the files that
// `model.safetensors.index.json` names; or those of a GGUF file, given the first where it is split.
class Checkpoint {
 public:
  // `naming` says how its tensors are to be read; without it those of a GGUF file have no names of Hugging Face's, and
  // a folder's stand for themselves.
  explicit Checkpoint(const std::filesystem::path& folder_or_gguf, NamingOf naming = nullptr);
  // Those of the folder's files that are called `stem` in place of "model".
  Checkpoint(const std::filesystem::path& folder, const std::string& stem) { open_folder(folder, stem); }

  struct Found {
    const std::filesystem::path& file;
    const StoredTensor& tensor;
    // Rows of a head of queries or keys whose rotated pairs lie next to each other (gguf_names.hpp): row 2 i + a of the
    // head is row i + a n / 2 in Hugging Face's order. 0: they do not.
    std::int64_t interleaved = 0;
    float added = 0;                       // to each value, in the file
    bool minus_exp = false;                // of each value is in the file
    const StoredTensor* scales = nullptr;  // where these are apart
    const std::filesystem::path* scales_file = nullptr;
  };
  // By Hugging Face's name. It may be stored with or without a leading "model.", as base models are saved; an embedding
  // that is not there is the head, to which it is tied (model.hpp refuses such a model if it is not). Throws an input
  // error that names the file where the tensor is missing. The result is valid as long as this checkpoint.
  Found find(const std::string& name) const;
  // Whether a tensor is stored under this name, with or without the prefix.
  bool contains(const std::string& name) const { return lookup(name) != places_.end(); }
  // Of all tensors that have a name of Hugging Face's.
  std::vector<std::string> names() const;

  // The files that a reader of this checkpoint opens, the first of a split GGUF file first.
  struct File {
    std::filesystem::path path;
    std::uint64_t header_bytes = 0;  // that it reads whatever it looks for
  };
  std::vector<File> files() const;

 private:
  struct Place {
    const std::filesystem::path* file;
    const StoredTensor* tensor;
    std::int64_t interleaved = 0;
    float added = 0;
    bool minus_exp = false;
  };
  std::map<std::string, Place>::const_iterator lookup(const std::string& name) const;
  void open_folder(const std::filesystem::path& folder, const std::string& stem);
  void open_gguf_file(const std::filesystem::path& path, NamingOf naming);
  void add(const SafetensorsFile& file, const std::string& stored);
  void add(const GgufFile& file, const std::string& stored, const std::string& name, const Place& place);

  std::filesystem::path contents_;                                 // the file that lists all tensors
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // by file name
  std::vector<std::unique_ptr<GgufFile>> gguf_;
  TensorNaming naming_;
  std::deque<StoredTensor> inside_;      // of tensors that hold several
  std::map<std::string, Place> places_;  // by tensor
};

}  // namespace motley
