// Which part of a model's weights a device's worker reads.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

// Of one thread.
class NeededChunks {
 public:
  // Of a folder or a GGUF file; the manifest, which is its own, outlives this.
  NeededChunks(const ModelManifest& manifest, std::filesystem::path model)
      : manifest_(manifest), model_(std::move(model)) {}
  // The chunks in which these rows lie, and the headers of all files. In order. Throws an input error where the model
  // lacks a tensor.
  std::vector<ChunkId> of(const std::vector<ReadRows>& read);

 private:
  const Checkpoint& files_of(const std::string& stem);

  const ModelManifest& manifest_;
  const std::filesystem::path model_;
  std::map<std::string, Checkpoint> opened_;  // by stem
};

}  // namespace motley
