#include "motley/model/part_tensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/model/model.hpp"

namespace motley {
namespace {

using ::testing::ElementsAreArray;
using Names = std::vector<std::string>;

// Of three layers.
Architecture shape_of(const std::string& family, bool tied) {
  const std::string config = fmt::format(
      R"({{"model_type": "{}", "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2,
           "num_key_value_heads": 2, "intermediate_size": 16, "ffn_dim": 16, "vocab_size": 32,
           "tie_word_embeddings": {}}})",
      family, tied);
  return read_architecture(parse_json(config, "config.json"), "config.json");
}

Names names_of(const std::vector<TensorSpec>& tensors) {
  Names names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  return names;
}

struct FamilyNames {
  std::string family, layers;  // the prefix of a layer's names
  Names embedding, block, head;
};

const std::vector<FamilyNames>& expected() {
  const Names gated = {"input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                       "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                       "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};
  static const std::vector<FamilyNames> families = {
      {"llama", "model.layers.", {"model.embed_tokens.weight"}, gated, {"model.norm.weight", "lm_head.weight"}},
      {"mistral", "model.layers.", {"model.embed_tokens.weight"}, gated, {"model.norm.weight", "lm_head.weight"}},
      {"qwen2",
       "model.layers.",
       {"model.embed_tokens.weight"},
       {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
        "self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias", "self_attn.o_proj.weight",
        "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"},
       {"model.norm.weight", "lm_head.weight"}},
      {"qwen3",
       "model.layers.",
       {"model.embed_tokens.weight"},
       {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
        "self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
        "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"},
       {"model.norm.weight", "lm_head.weight"}},
      {"opt",
       "model.decoder.layers.",
       {"model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"},
       {"self_attn_layer_norm.weight", "self_attn_layer_norm.bias", "self_attn.q_proj.weight", "self_attn.q_proj.bias",
        "self_attn.k_proj.weight", "self_attn.k_proj.bias", "self_attn.v_proj.weight", "self_attn.v_proj.bias",
        "self_attn.out_proj.weight", "self_attn.out_proj.bias", "final_layer_norm.weight", "final_layer_norm.bias",
        "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"},
       {"model.decoder.final_layer_norm.weight", "model.decoder.final_layer_norm.bias", "lm_head.weight"}},
  };
  return families;
}

Names blocks(const FamilyNames& family, const LayerRange& layers) {
  Names names;
  for (std::int64_t layer = layers.first; layer < layers.end; ++layer)
    for (const std::string& name : family.block) names.push_back(fmt::format("{}{}.{}", family.layers, layer, name));
  return names;
}

Names joined(Names first, const Names& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(PartTensors, AreThoseOfTheLayersAndEnds) {
  for (const FamilyNames& family : expected()) {
    SCOPED_TRACE(family.family);
    const Architecture arch = shape_of(family.family, false);
    const auto part = [&](const ModelPart& of) { return names_of(part_tensors(arch, of)); };
    EXPECT_THAT(part({}), ElementsAreArray(Names{}));
    EXPECT_THAT(part({.layers = {1, 3}}), ElementsAreArray(blocks(family, {1, 3})));
    EXPECT_THAT(part({.layers = {0, 1}, .embedding = true}),
                ElementsAreArray(joined(family.embedding, blocks(family, {0, 1}))));
    EXPECT_THAT(part({.layers = {}, .embedding = false, .head = true}), ElementsAreArray(family.head));
    EXPECT_THAT(part(whole_model(arch)),
                ElementsAreArray(joined(joined(family.embedding, blocks(family, {0, 3})), family.head)));
  }
}

TEST(PartTensors, ATiedTableIsThereOnce) {
  for (const FamilyNames& family : expected()) {
    SCOPED_TRACE(family.family);
    const Architecture arch = shape_of(family.family, true);
    Names norm = family.head;
    norm.pop_back();
    EXPECT_THAT(names_of(part_tensors(arch, {.layers = {}, .embedding = true, .head = true})),
                ElementsAreArray(joined(family.embedding, norm)));
    EXPECT_THAT(names_of(part_tensors(arch, {.layers = {2, 3}, .embedding = false, .head = true})),
                ElementsAreArray(joined(joined(blocks(family, {2, 3}), norm), {family.embedding.front()})));
  }
}

TEST(PartTensors, UnitsAreWholeAndLayersReachTheEnds) {
  const Architecture arch = shape_of("llama", true);
  const std::vector<ModelUnit> units = part_units(arch, with_ends(arch, {0, 3}));
  ASSERT_EQ(units.size(), 5u);
  for (std::size_t i = 0; i < units.size(); ++i) EXPECT_EQ(units[i].layer, static_cast<std::int64_t>(i) - 1);
  EXPECT_EQ(units.back().tensors.back().role, "head.weight");
  EXPECT_EQ(units.back().tensors.back().name, units.front().tensors.front().name);

  const ModelPart middle = with_ends(arch, {1, 2});
  EXPECT_FALSE(middle.embedding || middle.head);
  EXPECT_TRUE(with_ends(arch, {0, 1}).embedding);
  EXPECT_TRUE(with_ends(arch, {2, 3}).head);
}

}  // namespace
}  // namespace motley
