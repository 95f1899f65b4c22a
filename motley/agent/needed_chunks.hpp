// Which part of a model's weights a device's worker reads.
#pragma once

#include <string>
#include <vector>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/plan/serve.hpp"

namespace motley {

// The headers of all files, and of the tensors of the device's layers the rows that its rank holds; all columns. In
// order. Throws an input error where the device is in no stage, or the checkpoint lacks a tensor.
std::vector<ChunkId> needed_chunks(const ServePlan& plan, const std::string& device, const Checkpoint& checkpoint,
                                   const ModelManifest& manifest);

}  // namespace motley
