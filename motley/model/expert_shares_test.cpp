// Whole experts in place of columns of each.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "motley/model/model.hpp"
#include "motley/model/unlike_layers_test.hpp"

namespace motley {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Counts = std::vector<std::int64_t>;

// A dense layer, then two of experts.
Architecture some_experts(std::int64_t count, std::int64_t columns) {
  Architecture arch;
  arch.layers = 3;
  arch.heads = arch.kinds.front().kv_heads = 8;
  arch.kinds.front().head_dim = 32;
  arch.hidden = 256;
  arch.vocabulary = 1000;
  arch.kinds.front().ffn = 1024;
  arch = with_unlike_layers(arch, {0, 1, 1});
  arch.kinds[1].ffn = columns;
  arch.kinds[1].experts = {.count = count, .active = 2};
  return arch;
}

TEST(WholeExperts, GoToTheRanksInOrder) {
  const Architecture arch = some_experts(8, 96);
  const std::vector<Shard> shards = make_shards(arch, 3, {0.5, 0.25, 0.25}, DType::bf16, {5, 2, 1});
  EXPECT_EQ(shards[0].experts, (std::vector<Span>{{0, 0}, {0, 5}}));
  EXPECT_EQ(shards[1].experts[1], (Span{5, 7}));
  EXPECT_EQ(shards[2].experts[1], (Span{7, 8}));
  for (const Shard& shard : shards) EXPECT_EQ(shard.columns[1], (Span{0, 96}));
  const std::vector<Shard> columns = make_shards(arch, 3, {0.5, 0.25, 0.25}, DType::bf16);
  for (const std::size_t rank : {0, 1, 2}) {
    EXPECT_EQ(shards[rank].heads, columns[rank].heads);
    EXPECT_EQ(shards[rank].columns[0], columns[rank].columns[0]) << "of the dense layer";
    EXPECT_EQ(columns[rank].experts[1], (Span{0, 8}));
    EXPECT_FALSE(of_one_size(shards[rank], columns[rank]));
  }
  EXPECT_FALSE(of_one_size(shards[1], shards[2]));
}

// By the list of what it reads, and by the arithmetic of plans.
RC_GTEST_PROP(WholeExpertsProperty, EachIsHeldOnceAndCounted, ()) {
  const int degree = *rc::gen::inRange(2, 5);
  Counts counts;
  for (int rank = 0; rank < degree; ++rank) counts.push_back(*rc::gen::inRange<std::int64_t>(1, 5));
  const std::int64_t count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  Architecture arch = some_experts(count, *rc::gen::element<std::int64_t>(96, 250, 256));
  arch.ffn_bias = *rc::gen::arbitrary<bool>();
  const DType type = *rc::gen::element(DType::fp32, DType::bf16, DType::q8_0, DType::q4_k);
  const std::vector<Shard> shards = make_shards(arch, degree, {}, type, counts);
  const LayerRange layer{1, 2};
  std::map<std::string, int> holders;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    std::int64_t bytes = 0;
    for (const TensorSpec& tensor : held_tensors(arch, {.layers = layer}, shards[rank])) {
      const Slice slice = slice_of(arch, tensor, shards[rank]);
      bytes += (held_bytes(slice, held_type(arch, tensor, type)) + 63) / 64 * 64;
      if (tensor.expert < 0) continue;
      RC_ASSERT(slice.elements() == tensor.elements());
      ++holders[tensor.name];
    }
    RC_ASSERT(bytes == weight_bytes(arch, {.layers = layer}, shards[rank], type));
  }
  for (const TensorSpec& tensor : part_tensors(arch, {.layers = layer}))
    if (tensor.expert >= 0) RC_ASSERT(holders[tensor.name] == 1);
}

std::string refusal_of(const Architecture& arch, int degree, const Counts& counts) {
  try {
    make_shards(arch, degree, {}, DType::bf16, counts);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_THAT(error.hint(), HasSubstr("expert_shares"));
    return error.what();
  }
  return "accepted";
}

TEST(WholeExperts, AreRefusedWhereTheyDoNotAddUp) {
  const Architecture arch = some_experts(8, 96);
  EXPECT_THAT(refusal_of(arch, 2, {8, 0}), HasSubstr("rank 1 holds none of the 8 experts of layer 1"));
  EXPECT_THAT(refusal_of(arch, 2, {4, 3}), HasSubstr("the expert shares sum to 7, and layer 1 has 8 experts"));
  EXPECT_THAT(refusal_of(arch, 2, {9, -1}), HasSubstr("rank 1 holds none"));
  EXPECT_THAT(refusal_of(arch, 2, {4, 2, 2}), HasSubstr("3 expert shares for 2 devices"));
  Architecture dense = arch;
  dense.kinds = {arch.kinds.front()};
  dense.kind_of_layer.clear();
  EXPECT_THAT(refusal_of(dense, 2, {4, 4}), HasSubstr("no experts"));
}

Counts chosen(std::int64_t experts, std::int64_t columns, const std::vector<double>& shares, DType type,
              int degree = 2) {
  return choose_expert_shares(some_experts(experts, columns), degree, shares, type);
}

// Qwen3-30B-A3B has 768 columns, which are 3 blocks of 256.
TEST(WholeExperts, AreChosenWhereColumnsAreTooCoarse) {
  EXPECT_THAT(chosen(128, 768, {}, DType::bf16), IsEmpty()) << "96 units of 8";
  EXPECT_THAT(chosen(128, 768, {}, DType::q8_0), IsEmpty()) << "24 units of 32";
  EXPECT_THAT(chosen(128, 768, {}, DType::q4_k), ElementsAre(64, 64)) << "2 of 3 units are more than a half";
  EXPECT_THAT(chosen(128, 768, {2, 1}, DType::q4_k), IsEmpty()) << "2 of 3 units are just that";
  EXPECT_THAT(chosen(128, 768, {0.62, 0.38}, DType::q4_k), ElementsAre(79, 49));
  EXPECT_THAT(chosen(7, 768, {}, DType::q4_k), IsEmpty()) << "fewer than four experts for each rank";
  EXPECT_THAT(chosen(0, 768, {}, DType::q4_k), IsEmpty());
  EXPECT_THAT(chosen(128, 768, {}, DType::q4_k, 1), IsEmpty());
}

TEST(WholeExperts, AreNotChosenForLayersOfUnlikeNumbers) {
  Architecture arch = some_experts(128, 768);
  LayerKind other = arch.kinds[1];
  other.experts.count = 64;
  arch.kinds.push_back(other);
  arch.kind_of_layer[2] = 2;
  EXPECT_THAT(choose_expert_shares(arch, 2, {}, DType::q4_k), IsEmpty());
}

}  // namespace
}  // namespace motley
