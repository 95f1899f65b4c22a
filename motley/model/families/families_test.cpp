#include "motley/model/families/families.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace motley {
namespace {

bool is_packed_in_gguf(const Family& family, const TensorNames& names) {
  return std::ranges::any_of(family.gguf->packed, [&](const PackedNames& packed) {
    return !packed.also_apart && std::ranges::any_of(packed.parts, [&](std::string_view part) {
      return part.substr(0, part.rfind('.')) == names.hugging_face;
    });
  });
}

TEST(Families, HaveEachNameOnce) {
  std::set<std::string_view> families_seen;
  for (const Family* family : families()) {
    SCOPED_TRACE(family->name);
    EXPECT_TRUE(families_seen.insert(family->name).second);
    std::set<std::string_view> roles, hugging_face;
    std::set<std::string> gguf;
    for (const TensorNames& names : family->tensors) {
      EXPECT_TRUE(roles.insert(names.role).second) << names.role;
      EXPECT_TRUE(hugging_face.insert(names.hugging_face).second) << names.hugging_face;
      EXPECT_EQ(names.gguf.empty(), !family->gguf || is_packed_in_gguf(*family, names)) << names.role;
      EXPECT_TRUE(names.gguf.empty() || gguf.insert(std::string(names.gguf).append(names.gguf_ending)).second)
          << names.gguf;
    }
  }
  EXPECT_EQ(families_seen, (std::set<std::string_view>{"gemma3_text", "gemma4_text", "glm4_moe", "gpt_oss", "llama",
                                                       "minimax_m2", "mistral", "mixtral", "opt", "qwen2", "qwen3",
                                                       "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next"}));
}

TEST(Families, PackedTensorsHoldThoseOfTheFamily) {
  for (const Family* family : families())
    for (const PackedNames& packed : family->packed)
      for (const std::string_view part : packed.parts) {
        if (part.empty() || part.ends_with(scales_ending)) continue;
        const std::string_view stem = part.substr(0, part.rfind('.'));
        EXPECT_NE(std::ranges::find(family->tensors, stem, &TensorNames::hugging_face), family->tensors.end()) << part;
      }
}

TEST(Families, NamesInGgufFilesGoBothWays) {
  for (const Family* family : families())
    for (const TensorNames& names : family->tensors) {
      if (names.gguf.empty()) continue;
      const std::string known = with_layer(names.hugging_face, "31") + (names.gguf_ending.empty() ? ".weight" : "");
      EXPECT_EQ(hugging_face_name(family->tensors, gguf_name(family->tensors, with_expert(known, 5))), known);
    }
  Architecture arch;
  arch.family = "qwen3";
  EXPECT_EQ(gguf_name(family_of(arch).tensors, "model.layers.31.self_attn.k_norm.weight"), "blk.31.attn_k_norm.weight");
  arch.family = "glm4_moe";
  EXPECT_EQ(gguf_name(family_of(arch).tensors, "model.layers.7.mlp.gate.e_score_correction_bias"),
            "blk.7.exp_probs_b.bias");
  EXPECT_EQ(gguf_name(family_of(arch).tensors, "model.layers.7.post_attention_layernorm.weight"),
            "blk.7.post_attention_norm.weight");
  EXPECT_EQ(hugging_face_name(family_of(arch).tensors, "blk.7.exp_probs_b.weight"), "");
  EXPECT_EQ(hugging_face_name(family_of(arch).tensors, "blk.7.ffn_norm.weight"), "");
}

TEST(Families, RulesOfTokenizersHaveEachNameOnce) {
  std::set<std::string_view> seen;
  for (const PreTokenizer& rule : pre_tokenizers()) {
    EXPECT_FALSE(rule.patterns.front().empty()) << rule.names;
    for (std::size_t at = 0, end = 0; end != std::string_view::npos; at = end + 1) {
      end = rule.names.find(' ', at);
      EXPECT_TRUE(seen.insert(rule.names.substr(at, end - at)).second) << rule.names;
    }
  }
  for (const char* name : {"default", "gpt-2", "llama-bpe", "qwen2", "smollm", "tekken"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

Value metadata_of(const std::string& architecture, const std::map<std::string, std::int64_t>& sizes) {
  Value metadata = Value::object({{"general.architecture", architecture}});
  for (const auto& [key, value] : sizes) metadata.set(architecture + "." + key, value);
  return metadata;
}

std::string_view told(const Value& metadata) {
  const Family* family = gguf_family(metadata);
  return family ? family->name : "none";
}

TEST(Families, AreToldByTheKeysOfAGgufFile) {
  EXPECT_EQ(told(metadata_of("llama", {})), "llama");
  EXPECT_EQ(told(metadata_of("llama", {{"attention.sliding_window", 4096}})), "mistral");
  EXPECT_EQ(told(metadata_of("llama", {{"expert_count", 8}})), "mixtral");
  EXPECT_EQ(told(metadata_of("qwen2", {{"attention.sliding_window", 4096}})), "qwen2");
  EXPECT_EQ(told(metadata_of("qwen3", {})), "qwen3");
  EXPECT_EQ(told(metadata_of("qwen3moe", {})), "qwen3_moe");
  EXPECT_EQ(told(metadata_of("glm4moe", {})), "glm4_moe");
  EXPECT_EQ(told(metadata_of("minimax-m2", {})), "minimax_m2");
  EXPECT_EQ(told(metadata_of("opt", {})), "none");
  EXPECT_EQ(told(Value::object()), "none");
}

TEST(Families, LlamasRowsLieInPairsOfAHead) {
  for (const char* architecture : {"llama", "qwen2"}) {
    const TensorNaming naming =
        tensor_naming(metadata_of(architecture, {{"embedding_length", 64}, {"attention.head_count", 4}}));
    EXPECT_EQ(naming.head_rows, 16);
    for (const char* rotated : {"blk.2.attn_q.weight", "blk.2.attn_k.bias"})
      EXPECT_EQ(has_paired_rows(naming.names, rotated), architecture == std::string_view("llama")) << rotated;
    EXPECT_FALSE(has_paired_rows(naming.names, "blk.2.attn_v.weight"));
  }
  EXPECT_EQ(tensor_naming(metadata_of("qwen3", {{"attention.key_length", 128}, {"attention.head_count", 4}})).head_rows,
            128);
  EXPECT_EQ(tensor_naming(metadata_of("llama", {})).head_rows, 0);
  EXPECT_TRUE(tensor_naming(metadata_of("phi3", {})).names.empty());
}

}  // namespace
}  // namespace motley
