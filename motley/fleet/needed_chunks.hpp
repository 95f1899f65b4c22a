// Which part of a model's weights a device's worker reads.
#pragma once

#include <string>
#include <vector>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/plan/serve.hpp"

namespace motley {

// Rows of a tensor, read as the model's files hold it, all columns.
struct ReadRows {
  const Checkpoint& from;
  std::string tensor;
  Span rows;
};
// The chunks in which these lie, and the headers of all files. In order. Throws an input error where a checkpoint lacks
// a tensor.
std::vector<ChunkId> chunks_of(const std::vector<ReadRows>& read, const ModelManifest& manifest);

enum class ChunksOf { own_layers, standby_too };
// The headers of all files, and of the tensors of the device's layers the rows that its rank holds; all columns. In
// order. Throws an input error where the device is in no stage, or the checkpoint lacks a tensor.
std::vector<ChunkId> needed_chunks(const ServePlan& plan, const std::string& device, const Checkpoint& checkpoint,
                                   const ModelManifest& manifest, ChunksOf of = ChunksOf::own_layers);

}  // namespace motley
