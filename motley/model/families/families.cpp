#include "motley/model/families/families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "motley/base/error.hpp"

namespace motley {
namespace {

const Value* own_key(const Value& metadata, const GgufForm& form, std::string_view key) {
  return metadata.find(fmt::format("{}.{}", form.architecture, key));
}

KeyHeadRows key_head_rows(const Family& family, const Value& description) {
  return family.key_head_rows != nullptr ? family.key_head_rows(description) : KeyHeadRows{};
}

// By `model_type`; null: of none.
const Family* family_named(const Value* name) {
  const auto found = std::ranges::find_if(
      families(), [&](const Family* one) { return name != nullptr && *name == Value(std::string(one->name)); });
  return found == families().end() ? nullptr : *found;
}

}  // namespace

std::span<const Family* const> families() {
  static const std::array table = {&llama_family,      &mistral_family, &mixtral_family,    &opt_family,
                                   &qwen2_family,      &qwen3_family,   &qwen3_moe_family,  &glm4_moe_family,
                                   &minimax_m2_family, &gemma3_family,  &gemma4_family,     &gpt_oss_family,
                                   &qwen3_next_family, &qwen3_5_family, &qwen3_5_moe_family};
  return table;
}

const Family& family_of(const Architecture& arch) {
  const auto found = std::ranges::find(families(), arch.family, [](const Family* family) { return family->name; });
  MOTLEY_CHECK(found != families().end());
  return **found;
}

const TensorNames& names_of_role(const Family& family, std::string_view role) {
  const auto found = std::ranges::find(family.tensors, role, &TensorNames::role);
  MOTLEY_CHECK(found != family.tensors.end());
  return *found;
}

std::vector<PreTokenizer> pre_tokenizers() {
  std::vector<PreTokenizer> all;
  for (const Family* family : families())
    all.insert(all.end(), family->pre_tokenizers.begin(), family->pre_tokenizers.end());
  all.insert(all.end(), more_pre_tokenizers.begin(), more_pre_tokenizers.end());
  return all;
}

const Family* gguf_family(const Value& metadata) {
  const Value* architecture = metadata.find("general.architecture");
  const Family* found = nullptr;
  for (const Family* family : families()) {
    if (!family->gguf || !architecture || *architecture != Value(std::string(family->gguf->architecture))) continue;
    const auto& keys = family->gguf->keys;
    if (!found || (!keys.empty() && own_key(metadata, *family->gguf, keys.front().gguf) != nullptr)) found = family;
  }
  return found;
}

Value text_config(const Value& config) {
  const Value* inner = config.is_object() ? config.find("text_config") : nullptr;
  if (inner == nullptr || family_named(inner->is_object() ? inner->find("model_type") : nullptr) == nullptr)
    return config;
  Value own = *inner;
  // What is said of the whole holds.
  for (const char* key :
       {"tie_word_embeddings", "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id"})
    if (const Value* value = config.find(key)) own.set(key, *value);
  return own;
}

KeyHeadRows key_head_rows(const Architecture& arch) {
  for (const LayerKind& kind : arch.kinds)
    if (const DeltaNet& delta = kind.delta)
      return {.key_heads = delta.key_heads,
              .keys = delta.key_dim,
              .values = delta.values_of_key() * delta.value_dim,
              .value_heads = delta.values_of_key()};
  return {};
}

TensorNaming tensor_naming(const Value& description) {
  const Family* family = gguf_family(description);
  if (family == nullptr) {
    const Family* of_folder =
        description.is_object() ? family_named(text_config(description).find("model_type")) : nullptr;
    if (of_folder == nullptr) return {};
    return {.packed = of_folder->packed, .heads = key_head_rows(*of_folder, text_config(description))};
  }
  const auto size = [&](std::string_view key) {
    const Value* value = own_key(description, *family->gguf, key);
    return value != nullptr && value->is_integer() ? value->as_integer() : 0;
  };
  const std::int64_t stated = size("attention.key_length"), heads = size("attention.head_count");
  return {.names = family->tensors,
          .head_rows = stated > 0  ? stated
                       : heads > 0 ? size("embedding_length") / heads
                                   : 0,
          .packed = family->gguf->packed,
          .heads = key_head_rows(*family, description)};
}

}  // namespace motley
