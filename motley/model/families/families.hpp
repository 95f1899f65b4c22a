// All families of models. A new one is a file here, a name in this list and an entry of the table.
#pragma once

#include <span>
#include <vector>

#include "motley/model/families/family.hpp"

namespace motley {

extern const Family glm4_moe_family, llama_family, minimax_m2_family, mistral_family, mixtral_family, opt_family,
    qwen2_family, qwen3_family, qwen3_moe_family;

std::span<const Family* const> families();
const Family& family_of(const Architecture& arch);
// Of a role that the family has.
const TensorNames& names_of_role(const Family& family, std::string_view role);

// Those of all families, then the others.
std::vector<PreTokenizer> pre_tokenizers();

// Of a GGUF file; null: its architecture is none that is known.
const Family* gguf_family(const Value& metadata);
// By which a Checkpoint finds the tensors of a GGUF file.
GgufNaming gguf_naming(const Value& metadata);

}  // namespace motley
