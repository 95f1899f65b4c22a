#include "motley/model/warnings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/model/known_models.hpp"

namespace motley {
namespace {

TEST(ModelWarnings, NameTheFirstTensorsThatNothingReads) {
  Model model;
  model.name = "tales";
  EXPECT_TRUE(model_warnings(model).empty());
  model.unread = {"a"};
  EXPECT_EQ(model_warnings(model).at(0), "tales: 1 tensor in its files that the model does not use: a");
  model.unread = {"a", "b", "c", "d", "e"};
  EXPECT_EQ(model_warnings(model).at(0), "tales: 5 tensors in its files that the model does not use: a, b, c, d, ...");
}

TEST(ModelWarnings, NameTheLayersThatPredictFurtherTokens) {
  Model model;
  model.name = "air";
  model.arch.layers = 46;
  model.unread = {"model.layers.46.mlp.gate.weight", "blk.46.nextn.eh_proj.weight"};
  EXPECT_THAT(model_warnings(model), testing::ElementsAre("air: layer 46, which predicts further tokens, is left out"));
  model.unread = {"model.layers.46.a.weight", "model.layers.47.a.weight", "model.layers.45.extra.weight"};
  EXPECT_THAT(model_warnings(model),
              testing::ElementsAre("air: layers 46, 47, which predict further tokens, are left out",
                                   "air: 1 tensor in its files that the model does not use: "
                                   "model.layers.45.extra.weight"));
}

TEST(ModelWarnings, NameWhatPredictsFurtherTokensApart) {
  Model model;
  model.name = "qwen";
  model.arch.layers = 4;
  model.unread = {"mtp.layers.0.mlp.gate.weight", "mtp.norm.weight", "model.visual.patch_embed.proj.weight"};
  EXPECT_THAT(model_warnings(model),
              testing::ElementsAre("qwen: its tensors mtp.*, which predict further tokens, are left out",
                                   "qwen: 1 tensor in its files that the model does not use: "
                                   "model.visual.patch_embed.proj.weight"));
}

TEST(KnownModels, TheLargestThatFitsIsNamed) {
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(largest_known_model(gib, DType::bf16), std::nullopt);
  const auto desk = largest_known_model(24 * gib, DType::bf16), box = largest_known_model(200 * gib, DType::bf16);
  ASSERT_TRUE(desk && box);
  EXPECT_LE(total_parameters(read_model(*desk).arch), 12 * gib);
  EXPECT_LT(total_parameters(read_model(*desk).arch), total_parameters(read_model(*box).arch));
}

}  // namespace
}  // namespace motley
