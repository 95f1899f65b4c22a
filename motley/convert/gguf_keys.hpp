// The metadata of a GGUF file, as llama.cpp's converter writes it.
#pragma once

#include <filesystem>
#include <vector>

#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/model/model.hpp"

namespace motley {

// general.* and the keys of the architecture. Throws an input error for what has no key.
void write_architecture(const Model& model, DType type, GgufWriter& writer);

// Divisors of the rotary frequencies, of models scaled by Llama 3's rule; empty for others.
std::vector<float> frequency_factors(const Architecture& arch);

// tokenizer.* of a folder with tokenizer.json and, where it has them, tokenizer_config.json and chat_template.jinja;
// "no_vocab" where it has none. Throws an input error for a tokenizer that llama.cpp does not know.
void write_tokenizer(const std::filesystem::path& folder, const Model& model, GgufWriter& writer);

}  // namespace motley
