// All weights of one rank of a stage: each block where the plan homes it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "motley/engine/weights.hpp"

namespace motley {

struct StageWeights {
  std::unique_ptr<BlockStore> blocks;
  EndWeights ends;
  HeldTensors held = {};          // all of them once more, without copies: for another part of the model
  std::int64_t loaded_bytes = 0;  // of them: read, not held before
};

// Throws as WeightLoader does; an environment error where a home has no room.
StageWeights load_weights(const StageSpec& spec, const std::filesystem::path& model, at::Device device,
                          std::function<void(double)> progress = {}, HeldTensors held = {});

}  // namespace motley
