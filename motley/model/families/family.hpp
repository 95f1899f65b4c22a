// What a family of models has of its own: each fills one Family, in the file of its name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "motley/checkpoint/gguf_names.hpp"
#include "motley/model/architecture.hpp"
#include "motley/model/config.hpp"
#include "motley/model/families/pre_tokenizer.hpp"

namespace motley {

// A number that a GGUF file has below its architecture's name, and config.json under another.
struct GgufKey {
  std::string_view gguf, config;
  std::int64_t (*value)(const Architecture& arch);  // 0: the file has no such key
};

// Control tokens that end a turn or a document, which llama.cpp takes for ends of sequences, too.
inline constexpr std::array<std::string_view, 6> usual_end_texts = {"<|eot_id|>", "<|im_end|>",      "<|end|>",
                                                                    "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"};

// The family's GGUF files, as llama.cpp writes and reads them.
struct GgufForm {
  std::string_view architecture;  // `general.architecture`
  // Beyond those of all families (gguf_config.cpp). Of families that share an architecture, the first tells which it
  // is.
  std::span<const GgufKey> keys;
  // Where config.json says whether the attention's products have biases, and the FFN's. Empty: queries, keys and values
  // always have some and the output none; the FFN has none.
  std::string_view attention_bias, ffn_bias;
  std::span<const std::string_view> end_texts = usual_end_texts;
};

struct Family {
  std::string_view name;  // `model_type` of config.json
  Architecture (*read)(const Config& config);
  std::span<const TensorNames> tensors;
  std::string_view deviation;    // the key of config.json for the standard deviation of new weights
  std::optional<GgufForm> gguf;  // none: not in that format
  std::span<const PreTokenizer> pre_tokenizers = {};  // that came with the family
};

}  // namespace motley
