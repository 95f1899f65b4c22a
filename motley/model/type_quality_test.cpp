#include "motley/model/type_quality.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(TypeQuality, IsTheMeasuredDivergence) {
  EXPECT_EQ(weight_kl(DType::bf16), 0);
  EXPECT_EQ(weight_kl(DType::q8_0), 0.0014);
  EXPECT_EQ(weight_kl(DType::q4_0), 0.074);
  EXPECT_FALSE(weight_kl(DType::int4)) << "not measured";
  EXPECT_FALSE(weight_kl(DType::mxfp4)) << "not measured";
  EXPECT_EQ(kv_kl(DType::bf16), 0);
  EXPECT_EQ(kv_kl(DType::q8_0), 0.0003);
  EXPECT_FALSE(kv_kl(DType::q4_0)) << "not measured";
}

TEST(TypeQuality, ChoicesFitTheRowsAndHaveNoBetterOther) {
  Architecture arch = read_model("llama-2-7b").arch;  // rows of 4096 and 11008, both multiples of 256
  EXPECT_EQ(weight_type_choices(arch),
            (std::vector<DType>{DType::fp16, DType::q8_0, DType::q6_k, DType::q5_k, DType::q4_k, DType::iq4_xs}));
  arch.kinds.front().ffn = 11008 + 32;
  EXPECT_EQ(weight_type_choices(arch),
            (std::vector<DType>{DType::fp16, DType::q8_0, DType::q5_1, DType::q5_0, DType::iq4_nl}));
  arch.kinds.front().ffn = 11008 + 8;
  EXPECT_EQ(weight_type_choices(arch), (std::vector<DType>{DType::fp16}));
}

TEST(TypeQuality, KeysAndValuesComeInBlocksAlongAHead) {
  EXPECT_EQ(kv_type_choices(read_model("llama-2-7b").arch), (std::vector<DType>{DType::fp16, DType::q8_0}));
  const Architecture tales = read_model(MOTLEY_SOURCE_DIR "/data/models/tales").arch;
  ASSERT_NE(tales.kinds.front().head_dim % 32, 0);
  EXPECT_EQ(kv_type_choices(tales), (std::vector<DType>{DType::bf16}));
}

}  // namespace
}  // namespace motley
