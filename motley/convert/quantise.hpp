// A model as a GGUF file that llama.cpp loads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "motley/base/dtype.hpp"

namespace motley {

struct QuantiseOptions {
  DType type = DType::q8_0;  // of the matrices whose rows fit, tables included; others get fitting()
  int threads = 1;
  std::function<void(double fraction, const std::string& tensor)> progress = {};
};

struct Quantised {
  std::int64_t bytes = 0;  // of the tensors
  double bits_per_weight = 0;
};

// Reads a model folder or a GGUF file, and writes `to` whole or not at all. The tokenizer of a folder is told as
// llama.cpp's converter tells it; that of a GGUF file is taken over. Throws an input error for what llama.cpp's file
// has no words for: families without a GGUF form, and tokenizers whose rule no family lists.
Quantised quantise_model(const std::string& model, const std::filesystem::path& to, const QuantiseOptions& options);

}  // namespace motley
