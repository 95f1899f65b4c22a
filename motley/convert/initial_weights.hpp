// A model folder with random weights, to be trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "motley/base/dtype.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct InitialOptions {
  std::uint64_t seed = 0;
  DType type = DType::fp32;  // of the tensors: fp32, bf16 or fp16
  int threads = 1;           // the result does not depend on it
  std::function<void(double fraction)> progress = {};
};

// Writes config.json, model.safetensors and, where `tokenizer` is a folder that has them, the files of its tokenizer
// and generation_config.json to the new folder `to`, whole or not at all. Values are distributed as `transformers`
// draws them for the families of read_architecture(): matrices normally with the standard deviation that the
// configuration names (`initializer_range`, for OPT `init_std`, else 0.02), without another scale for output
// projections; norms 1, biases 0, the embedding's row of the padding token 0. Each value is a function of seed, tensor
// name and place. Throws an input error where `to` exists.
void write_initial_model(const Model& model, const std::filesystem::path& tokenizer, const std::filesystem::path& to,
                         const InitialOptions& options);

}  // namespace motley
