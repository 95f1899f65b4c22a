#include "motley/model/weight_quality.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(WeightQuality, IsThePublishedDivergence) {
  EXPECT_EQ(weight_kl(DType::bf16), 0);
  EXPECT_EQ(weight_kl(DType::q8_0), 0.0014);
  EXPECT_EQ(weight_kl(DType::q4_0), 0.074);
  EXPECT_FALSE(weight_kl(DType::int4)) << "not measured";
}

TEST(WeightQuality, ChoicesFitTheRowsAndHaveNoBetterOther) {
  Architecture arch = read_model("llama-2-7b").arch;  // rows of 4096 and 11008, both multiples of 256
  EXPECT_EQ(weight_type_choices(arch),
            (std::vector<DType>{DType::fp16, DType::q8_0, DType::q6_k, DType::q5_k, DType::q4_k}));
  arch.ffn = 11008 + 32;
  EXPECT_EQ(weight_type_choices(arch),
            (std::vector<DType>{DType::fp16, DType::q8_0, DType::q5_1, DType::q5_0, DType::q4_1, DType::q4_0}));
  arch.ffn = 11008 + 8;
  EXPECT_EQ(weight_type_choices(arch), (std::vector<DType>{DType::fp16}));
}

}  // namespace
}  // namespace motley
