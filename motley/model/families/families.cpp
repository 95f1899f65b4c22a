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

}  // namespace

std::span<const Family* const> families() {
  static const std::array table = {&llama_family, &mistral_family,   &mixtral_family,  &opt_family,       &qwen2_family,
                                   &qwen3_family, &qwen3_moe_family, &glm4_moe_family, &minimax_m2_family};
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

GgufNaming gguf_naming(const Value& metadata) {
  const Family* family = gguf_family(metadata);
  if (family == nullptr) return {};
  const auto size = [&](std::string_view key) {
    const Value* value = own_key(metadata, *family->gguf, key);
    return value != nullptr && value->is_integer() ? value->as_integer() : 0;
  };
  const std::int64_t stated = size("attention.key_length"), heads = size("attention.head_count");
  return {.names = family->tensors,
          .head_rows = stated > 0  ? stated
                       : heads > 0 ? size("embedding_length") / heads
                                   : 0};
}

}  // namespace motley
