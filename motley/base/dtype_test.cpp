#include "motley/base/dtype.hpp"

#include <gtest/gtest.h>

#include <set>

namespace motley {
namespace {

TEST(DType, EachHasARowOfItsOwn) {
  std::set<std::string_view> names;
  for (const DTypeRow& row : dtypes()) {
    EXPECT_EQ(&dtype_row(row.type), &row);
    EXPECT_EQ(find_dtype(row.name), &row);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(supports(row.computed_in, Support::planned, Use::values)) << row.name;
    EXPECT_TRUE(dtype_row(row.rated_in).is_rated) << row.name;
    EXPECT_FALSE(row.values >= Support::planned && row.config_name.empty()) << row.name;
  }
  EXPECT_EQ(find_dtype("p16"), nullptr);
}

TEST(DType, BytesAreCountedInWholeBlocks) {
  EXPECT_EQ(bytes_of(DType::fp32, 3), 12);
  EXPECT_EQ(bytes_of(DType::bf16, 3), 6);
  EXPECT_EQ(bytes_of(DType::int8, 3), 3);
  EXPECT_EQ(bytes_of(DType::int4, 3), 36);
  EXPECT_EQ(bytes_of(DType::int4, 0), 0);
  EXPECT_EQ(dtype_row(DType::int4).bits_per_value(), 4.5);
  EXPECT_EQ(bytes_of(DType::q8_0, 33), 68);
  EXPECT_EQ(bytes_of(DType::q4_k, 576), 3 * 144);
  EXPECT_EQ(dtype_row(DType::q6_k).bits_per_value(), 6.5625);
  EXPECT_EQ(dtype_row(DType::mxfp4).bits_per_value(), 4.25);
  EXPECT_EQ(dtype_row(DType::iq4_nl).bits_per_value(), 4.5);
  EXPECT_EQ(dtype_row(DType::iq4_xs).bits_per_value(), 4.25);
}

TEST(DType, PlansNameWhatHasAPrice) {
  EXPECT_EQ(names_with(Support::served, Use::values), "fp32 or bf16");
  EXPECT_EQ(names_with(Support::planned, Use::values), "fp32, bf16 or fp16");
  EXPECT_EQ(names_with(Support::served, Use::kv), "fp32, bf16 or q8_0");
  EXPECT_EQ(names_with(Support::planned, Use::kv), "fp32, bf16, fp16 or q8_0");
  EXPECT_EQ(names_with(Support::served, Use::weights),
            "fp32, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, mxfp4, iq4_nl, iq4_xs or file");
  std::vector<std::string_view> named;
  for (const auto& entry : enum_names<DType>()) named.push_back(entry.name);
  EXPECT_EQ(named,
            (std::vector<std::string_view>{"fp32", "bf16", "fp16", "int8", "int4", "q8_0", "q4_0", "q4_1", "q5_0",
                                           "q5_1", "q4_k", "q5_k", "q6_k", "mxfp4", "iq4_nl", "iq4_xs", "file"}));
}

TEST(DType, RowsThatAreNotWholeBlocksGetSmallerOnes) {
  EXPECT_EQ(fitting(DType::q4_k, 512), DType::q4_k);
  EXPECT_EQ(fitting(DType::q4_k, 576), DType::q5_0);
  EXPECT_EQ(fitting(DType::q5_k, 576), DType::q5_1);
  EXPECT_EQ(fitting(DType::q6_k, 576), DType::q8_0);
  EXPECT_EQ(fitting(DType::iq4_xs, 512), DType::iq4_xs);
  EXPECT_EQ(fitting(DType::iq4_xs, 576), DType::iq4_nl);
  EXPECT_EQ(fitting(DType::iq4_xs, 40), DType::fp16);
  EXPECT_EQ(fitting(DType::mxfp4, 2880), DType::mxfp4);
  EXPECT_EQ(fitting(DType::mxfp4, 40), DType::fp16);
  EXPECT_EQ(fitting(DType::q4_0, 40), DType::fp16);
  EXPECT_EQ(fitting(DType::q6_k, 40), DType::fp16);
  EXPECT_EQ(fitting(DType::bf16, 7), DType::bf16);
}

}  // namespace
}  // namespace motley
