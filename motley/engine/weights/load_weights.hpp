// Where the weights of a rank come together: the loader, and a store of blocks by the spec.
#pragma once

#include "motley/engine/weights/weights.hpp"

namespace motley {

// All weights of a rank: each block where the spec homes it.
StageWeights load_weights(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
                          std::function<void(double)> progress = {}, RetainedTensors held = {});

}  // namespace motley
