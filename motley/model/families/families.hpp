// All families of models. A new one is a file here, a name in this list and an entry of the table.
#pragma once

#include <span>
#include <vector>

#include "motley/model/families/family.hpp"

namespace motley {

extern const Family gemma3_family, gemma4_family, glm4_moe_family, gpt_oss_family, llama_family, minimax_m2_family,
    mistral_family, mixtral_family, opt_family, qwen2_family, qwen3_5_family, qwen3_5_moe_family, qwen3_family,
    qwen3_moe_family, qwen3_next_family;

std::span<const Family* const> families();
const Family& family_of(const Architecture& arch);
// Of a role that the family has.
const TensorNames& names_of_role(const Family& family, std::string_view role);

// Those of all families, then the others.
std::vector<PreTokenizer> pre_tokenizers();

// Of a GGUF file; null: its architecture is none that is known.
const Family* gguf_family(const Value& metadata);
// The config.json of the language model, where one of a known family is a part of what this describes.
Value text_config(const Value& config);
// Of its delta nets; zeros: it has none.
KeyHeadRows key_head_rows(const Architecture& arch);
// By which a Checkpoint finds tensors: of a GGUF file with such metadata, or of a folder with such a config.json.
TensorNaming tensor_naming(const Value& description);

}  // namespace motley
