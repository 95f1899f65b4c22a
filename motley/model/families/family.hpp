// What a family of models has of its own: each fills one Family, in the file of its name.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "motley/checkpoint/gguf_names.hpp"
#include "motley/model/architecture.hpp"
#include "motley/model/config.hpp"
#include "motley/model/families/pre_tokenizer.hpp"

namespace motley {

// A value that a GGUF file has below its architecture's name, and config.json under another.
struct GgufKey {
  std::string_view gguf, config;
  Value (*value)(const Architecture& arch);  // a number, a flag, integers or flags; null: no such key is written
};

inline Value value_or_null(std::int64_t size) { return size > 0 ? Value(size) : Value(); }

// How the answers of chat models set their thinking apart: between <think> and </think>; as messages of harmony, whose
// channels say what they are; or, as Gemma 4, from <|channel>thought to <channel|>.
enum class Reasoning : std::uint8_t { none, tags, harmony, channels };

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
  Activation activation = Activation::silu;
  std::int64_t full_period = 0;          // all layers but each one of this number have the window; 0: all have it
  bool windows_by_layer = false;         // a key of its own says which layers have it, instead
  bool whole_pairs = true;               // where the ramp of YaRN begins and ends, which no key says
  bool rotates_part = false;             // of a head: `rope.dimension_count` is `rotary_dim` of config.json
  bool output_bias = true;               // false: `attention_bias` is about queries, keys and values alone
  std::string_view qk_norm = {};         // says in config.json whether there are norms of heads; empty: it is always so
  std::string_view keys_as_values = {};  // says in config.json whether some layers have no product for values
  bool tiled_values = false;             // heads of a delta net's values are in the order that DeltaNet calls tiled
  std::span<const PackedNames> packed = {};  // of tensors that such files hold inside others
  // What config.json states and every file of this architecture means without a key. Null: nothing.
  void (*add_implied)(Value& config) = nullptr;
  // What of a model such a file cannot say, to be told as it is: "...". Empty, or null: nothing.
  std::string (*has_no_key_for)(const Architecture& arch) = nullptr;
  // Of a tokenizer with pieces that puts no space before a text: `tokenizer.ggml.model`. Merges of kinds other than
  // `llama` are a list.
  std::string_view pieces_kind = "llama";
  // Special tokens that such files have as ordinary text, so that readers of an answer see them.
  std::span<const std::string_view> visible_tokens = {};
  bool has_key(std::string_view key) const { return std::ranges::find(keys, key, &GgufKey::gguf) != keys.end(); }
};

struct Family {
  std::string_view name;  // `model_type` of config.json
  Architecture (*read)(const Config& config);
  std::span<const TensorNames> tensors;
  std::string_view deviation;    // the key of config.json for the standard deviation of new weights
  std::optional<GgufForm> gguf;  // none: not in that format
  std::span<const PreTokenizer> pre_tokenizers = {};  // that came with the family
  std::span<const PackedNames> packed = {};           // of tensors that safetensors files hold inside others
  // Of the description that names of tensors are found by; null: it has no delta nets.
  KeyHeadRows (*key_head_rows)(const Value& description) = nullptr;
  // What `quant_method` may be in config.json: then the experts' matrices are of this type and all others bf16.
  std::optional<DType> quantised_experts = {};
  std::span<const std::string_view> end_texts = usual_end_texts;  // of its chats
  Reasoning reasoning = Reasoning::tags;                          // so for models that never think, too
};

}  // namespace motley
