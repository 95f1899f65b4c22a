// What a GGUF file says about its model, as the config.json that says the same.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/dtype.hpp"
#include "motley/base/value.hpp"
#include "motley/checkpoint/gguf.hpp"

namespace motley {

// Of all parts of a model, in order. Throws an input error that names file and key where a key is missing or wrong, and
// for what config.json has no words for: other architectures, experts, frequency factors that are not Llama 3's.
Value gguf_config(const std::vector<std::unique_ptr<GgufFile>>& parts);

// The types of the matrices by Hugging Face's names. Throws an input error for types that are not loaded.
std::map<std::string, DType> gguf_tensor_types(const std::vector<std::unique_ptr<GgufFile>>& parts);

}  // namespace motley
