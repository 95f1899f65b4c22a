#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>

#include "motley/model/model.hpp"

namespace motley {
namespace {

using testing::ElementsAre;

Architecture shape(std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn = 1024, std::int64_t vocabulary = 1000) {
  Architecture arch;
  arch.family = "llama";
  arch.layers = 2;
  arch.heads = heads;
  arch.kinds.front().kv_heads = kv_heads;
  arch.kinds.front().head_dim = 4;
  arch.hidden = heads * arch.kinds.front().head_dim;
  arch.kinds.front().ffn = ffn;
  arch.vocabulary = vocabulary;
  arch.qkv_bias = arch.output_bias = arch.ffn_bias = arch.norm_bias = true;
  return arch;
}

Span query_heads(const Shard& shard) { return shard.heads.front(); }
Span kv_heads_of(const Shard& shard) { return shard.kv_heads.front(); }
Span ffn_columns(const Shard& shard) { return shard.columns.front(); }

std::vector<std::int64_t> sizes(const std::vector<Shard>& shards, const std::function<Span(const Shard&)>& part) {
  std::vector<std::int64_t> result;
  for (const Shard& shard : shards) result.push_back(part(shard).size());
  return result;
}

TEST(Shards, OneRankHoldsAll) {
  const Shard whole = make_shards(shape(8, 2), 1).front();
  EXPECT_EQ(whole, (Shard{{{0, 8}}, {{0, 2}}, {{0, 1024}}, {{}}, {0, 1000}, {{}}, {{}}}));
}

Architecture with_delta_net(bool tiled) {
  Architecture arch = shape(8, 2);
  arch.family = "qwen3_5_text";
  arch.qkv_bias = arch.output_bias = arch.ffn_bias = arch.norm_bias = false;
  arch.kinds.front().delta = {
      .key_heads = 4, .value_heads = 12, .key_dim = 5, .value_dim = 16, .width = 4, .tiled = tiled};
  return arch;
}

Slice slice_of_role(const Architecture& arch, const std::string& role, const Shard& shard) {
  for (const TensorSpec& tensor : block_tensors(arch, 0))
    if (tensor.role == role) return slice_of(arch, tensor, shard);
  ADD_FAILURE() << role;
  return {};
}

TEST(Shards, ValueHeadsGoWithTheirKeyHeads) {
  const Architecture grouped = with_delta_net(false);
  const auto shards = make_shards(grouped, 2, {0.7, 0.3});
  EXPECT_EQ(shards[0].delta.front(), (Span{0, 3}));
  EXPECT_EQ(shards[1].delta.front(), (Span{3, 4}));
  EXPECT_EQ(slice_of_role(grouped, "delta.q.weight", shards[1]), (Slice{{15, 20}, {0, 32}}));
  EXPECT_EQ(slice_of_role(grouped, "delta.v.weight", shards[1]), (Slice{{144, 192}, {0, 32}}));
  EXPECT_EQ(slice_of_role(grouped, "delta.out.weight", shards[1]), (Slice{{0, 32}, {144, 192}}));
  EXPECT_EQ(slice_of_role(grouped, "delta.decay", shards[0]), (Slice{{0, 9}, {0, 1}}));
  EXPECT_EQ(state_bytes(grouped, 0, shards[1]), 4 * (3 * 5 * 16 + (2 * 5 + 3 * 16) * 3));

  // Heads 3, 7 and 11 of the file.
  const Architecture tiled = with_delta_net(true);
  const Slice values = slice_of_role(tiled, "delta.v.weight", shards[1]),
              out = slice_of_role(tiled, "delta.out.weight", shards[1]);
  EXPECT_EQ(values, (Slice{{48, 64}, {0, 32}, 3, 64, 0}));
  EXPECT_EQ(values.at(2), (Slice{{176, 192}, {0, 32}}));
  EXPECT_EQ(out, (Slice{{0, 32}, {48, 64}, 3, 0, 64}));
  EXPECT_EQ(values.held_rows(), 48);
  EXPECT_EQ(out.held_columns(), 48);
  EXPECT_EQ(out.elements(), 32 * 48);
  EXPECT_EQ(held_bytes(out, DType::fp32), 4 * 32 * 48);
  EXPECT_EQ(slice_of_role(tiled, "delta.v.weight", make_shards(tiled, 1).front()), (Slice{{0, 192}, {0, 32}}));
}

TEST(Shards, KeyHeadsOfDeltaNetsGoRoundOnce) {
  EXPECT_THROW(make_shards(with_delta_net(false), 5), Error);
  Architecture arch = with_delta_net(true);
  arch.kinds.front().tensor_types = {{"delta.out.weight", DType::q8_0}};  // blocks of two heads
  for (const TensorSpec& tensor : block_tensors(arch, 0))
    arch.kinds.front().tensor_types.emplace(tensor.role, DType::fp32);
  const auto delta = [](const Shard& shard) { return shard.delta.front(); };
  EXPECT_THAT(sizes(make_shards(arch, 2, {0.9, 0.1}), delta), ElementsAre(2, 2));
  EXPECT_THROW(make_shards(arch, 3), Error);
}

TEST(Shards, EightKvHeadsOverThree) {
  const auto equal = make_shards(shape(32, 8), 3);
  EXPECT_THAT(sizes(equal, kv_heads_of), ElementsAre(3, 3, 2));
  EXPECT_THAT(sizes(equal, query_heads), ElementsAre(12, 12, 8));
  EXPECT_THAT(sizes(equal, ffn_columns), ElementsAre(344, 344, 336));
  EXPECT_THAT(sizes(equal, &Shard::vocabulary), ElementsAre(336, 336, 328));  // 125 grains of 8

  const auto uneven = make_shards(shape(32, 8), 3, {0.5, 0.25, 0.25});
  EXPECT_THAT(sizes(uneven, kv_heads_of), ElementsAre(4, 2, 2));
  EXPECT_THAT(sizes(uneven, ffn_columns), ElementsAre(512, 256, 256));

  const auto steep = make_shards(shape(32, 8), 3, {0.98, 0.01, 0.01});
  EXPECT_THAT(sizes(steep, kv_heads_of), ElementsAre(6, 1, 1));

  // Due 0.56 each, the last two get one before the others' remainders count.
  const auto small = make_shards(shape(32, 8), 4, {0.45, 0.41, 0.07, 0.07});
  EXPECT_THAT(sizes(small, kv_heads_of), ElementsAre(3, 3, 1, 1));
}

TEST(Shards, KindsOfUnlikeHeadsAreCutEachForItself) {
  Architecture arch = shape(8, 4);
  LayerKind full = arch.kinds.front();
  full.kv_heads = 2;
  full.head_dim = 8;
  arch.kinds.push_back(full);
  arch.kind_of_layer = {0, 1};
  const auto shards = make_shards(arch, 3, {0.5, 0.25, 0.25});
  EXPECT_THAT(sizes(shards, query_heads), ElementsAre(4, 2, 2));
  EXPECT_THAT(sizes(shards, kv_heads_of), ElementsAre(2, 1, 1));
  EXPECT_EQ(shards[0].kv_heads[1], (Span{0, 1}));
  EXPECT_EQ(shards[1].kv_heads[1], (Span{1, 2}));
  EXPECT_EQ(shards[2].kv_heads[1], (Span{1, 2})) << "it divides that head's queries with the rank before it";
  const auto rows_of = [&](std::int64_t layer, const Shard& shard) {
    for (const TensorSpec& tensor : block_tensors(arch, layer))
      if (tensor.role == "k.weight") return slice_of(arch, tensor, shard).rows;
    return Span();
  };
  EXPECT_EQ(rows_of(0, shards[1]), (Span{8, 12}));
  EXPECT_EQ(rows_of(1, shards[1]), (Span{8, 16}));
  // Keys and values of 16 tokens, in fp16: of each layer by its own heads.
  EXPECT_EQ(kv_cache_bytes(arch, 0, shards[0], DType::fp16, 16, 16), 2 * 16 * 2 * 4 * 2);
  EXPECT_EQ(kv_cache_bytes(arch, 1, shards[0], DType::fp16, 16, 16), 2 * 16 * 1 * 8 * 2);
  EXPECT_EQ(kv_bytes_per_token(arch, {0, 2}, DType::fp16), 2 * (4 * 4 + 2 * 8) * 2);
  EXPECT_FALSE(alike_heads(arch));
  EXPECT_THROW(check_kv_homes(arch, {Tier::device, Tier::disk}), Error);
}

TEST(Shards, MoreRanksThanKvHeadsShareThem) {
  const auto four = make_shards(shape(8, 2), 4);
  EXPECT_THAT(sizes(four, query_heads), ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(four[1].kv_heads.front(), (Span{0, 1}));
  EXPECT_EQ(four[2].kv_heads.front(), (Span{1, 2}));

  // The KV heads go to the ranks whose shares sum up best: the strong rank alone has one.
  const auto uneven = make_shards(shape(8, 2), 3, {0.5, 0.25, 0.25});
  EXPECT_THAT(sizes(uneven, query_heads), ElementsAre(4, 2, 2));
  EXPECT_EQ(uneven[0].kv_heads.front(), (Span{0, 1}));
  EXPECT_EQ(uneven[2].kv_heads.front(), (Span{1, 2}));

  EXPECT_THAT(sizes(make_shards(shape(8, 2), 8), query_heads), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(sizes(make_shards(shape(8, 1), 3), query_heads), ElementsAre(3, 3, 2));
  // No KV head has more ranks than query heads, however the shares lie.
  EXPECT_THAT(sizes(make_shards(shape(4, 2), 4, {0.9, 0.04, 0.03, 0.03}), query_heads), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(sizes(make_shards(shape(4, 2), 3, {0.01, 0.01, 0.98}), query_heads), ElementsAre(1, 1, 2));
  // And each that comes later has one rank at least.
  EXPECT_THAT(sizes(make_shards(shape(12, 3), 4, {0.01, 0.01, 0.01, 0.97}), query_heads), ElementsAre(2, 2, 4, 4));
}

TEST(Shards, SmallSizesAreCutFinely) {
  EXPECT_THAT(sizes(make_shards(shape(4, 4, 20, 7), 3), ffn_columns), ElementsAre(7, 7, 6));
  EXPECT_THAT(sizes(make_shards(shape(4, 4, 20, 7), 3), &Shard::vocabulary), ElementsAre(3, 2, 2));
  EXPECT_THAT(sizes(make_shards(shape(4, 4, 27), 3), ffn_columns), ElementsAre(8, 8, 11));
  EXPECT_THAT(sizes(make_shards(shape(4, 4, 3, 3), 3), ffn_columns), ElementsAre(1, 1, 1));
}

std::map<std::string, DType> types_of_all(const Architecture& arch, DType type) {
  std::map<std::string, DType> types;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    for (const TensorSpec& tensor : block_tensors(arch, layer)) types[tensor.name] = type;
  return types;
}

TEST(Shards, FfnOfAFileIsCutAtItsBlocks) {
  const auto cut = [](DType type, std::int64_t ffn, int degree) {
    Architecture arch = shape(8, 4, ffn);
    set_tensor_types(arch, types_of_all(arch, type));
    std::vector<std::int64_t> columns;
    for (const Shard& shard : make_shards(arch, degree)) columns.push_back(ffn_columns(shard).size());
    return columns;
  };
  EXPECT_THAT(cut(DType::q4_k, 1536, 4), ElementsAre(512, 512, 256, 256));
  EXPECT_THAT(cut(DType::q4_k, 512, 3), ElementsAre(192, 160, 160)) << "not a block of 256 for each";
  EXPECT_THAT(cut(DType::q8_0, 512, 3), ElementsAre(192, 160, 160));
  EXPECT_THAT(cut(DType::bf16, 512, 3), ElementsAre(176, 168, 168));
}

TEST(Shards, FfnOfATypeMadeAtLoadIsCutAtItsBlocks) {
  const auto cut = [](DType type, std::int64_t ffn, int degree, const std::vector<double>& shares = {}) {
    return sizes(make_shards(shape(8, 4, ffn), degree, shares, type), ffn_columns);
  };
  EXPECT_THAT(cut(DType::q4_k, 1536, 4), ElementsAre(512, 512, 256, 256));
  EXPECT_THAT(cut(DType::q4_k, 512, 3), ElementsAre(192, 160, 160)) << "not a block of 256 for each";
  EXPECT_THAT(cut(DType::q4_k, 1312, 2), ElementsAre(672, 640)) << "held as q5_0: rows are not whole blocks of 256";
  EXPECT_THAT(cut(DType::q8_0, 512, 3), ElementsAre(192, 160, 160));
  EXPECT_THAT(cut(DType::q8_0, 1024, 3, {0.5, 0.25, 0.25}), ElementsAre(512, 256, 256));
  EXPECT_THAT(cut(DType::q4_0, 64, 3), ElementsAre(24, 24, 16)) << "not a block of 32 for each";
  EXPECT_THAT(cut(DType::q4_0, 72, 3), ElementsAre(24, 24, 24)) << "held as fp16";
  for (const DType dense : {DType::fp32, DType::bf16, DType::int4, DType::file})
    EXPECT_THAT(cut(dense, 1536, 5), ElementsAre(312, 312, 304, 304, 304));
}

// A file in one type that is loaded as another: neither's blocks are cut.
TEST(Shards, FfnOfAFileThatIsConvertedIsCutAtTheLargerBlocks) {
  Architecture arch = shape(8, 4, 1536);
  set_tensor_types(arch, types_of_all(arch, DType::q8_0));
  EXPECT_THAT(sizes(make_shards(arch, 4, {}, DType::q4_k), ffn_columns), ElementsAre(512, 512, 256, 256));
  EXPECT_THAT(sizes(make_shards(arch, 5, {}, DType::file), ffn_columns), ElementsAre(320, 320, 320, 288, 288));
}

TEST(Shards, RefusesWhatCannotBeCut) {
  EXPECT_THROW(make_shards(shape(8, 2), 0), Error);
  try {
    make_shards(shape(8, 2), 9);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "8 query heads cannot be split over 9 devices");
  }
  EXPECT_THROW(make_shards(shape(8, 2, 2), 3), Error);
  EXPECT_THROW(make_shards(shape(8, 2, 64, 2), 3), Error);
  EXPECT_THROW(make_shards(shape(8, 2), 2, {1.0}), Error);
  EXPECT_THROW(make_shards(shape(8, 2), 2, {1.0, 0.0}), Error);
  EXPECT_THROW(make_shards(shape(8, 2), 2, {1.0, -1.0}), Error);
  EXPECT_THROW(make_shards(shape(8, 2), 2, {1.0, std::nan("")}), Error);
}

// A random group: an architecture, a degree that it allows and shares (sometimes none).
struct Group {
  Architecture arch;
  int degree = 1;
  std::vector<double> shares;
};

Group random_group() {
  const auto kv_heads = *rc::gen::inRange<std::int64_t>(1, 10);
  const auto group = *rc::gen::inRange<std::int64_t>(1, 6);
  Group g{shape(kv_heads * group, kv_heads, *rc::gen::inRange<std::int64_t>(96, 3000),
                *rc::gen::inRange<std::int64_t>(96, 3000)),
          1,
          {}};
  g.degree = static_cast<int>(*rc::gen::inRange<std::int64_t>(1, std::min<std::int64_t>(g.arch.heads, 12) + 1));
  if (*rc::gen::arbitrary<bool>())
    for (int i = 0; i < g.degree; ++i) g.shares.push_back(*rc::gen::inRange(1, 100) / 10.0);
  return g;
}

RC_GTEST_PROP(ShardsProperty, CoverEverythingOnceAndInOrder, ()) {
  const Group g = random_group();
  const auto shards = make_shards(g.arch, g.degree, g.shares);
  RC_ASSERT(shards.size() == static_cast<std::size_t>(g.degree));
  const auto covers = [&](const std::function<Span(const Shard&)>& part, std::int64_t size) {
    std::int64_t next = 0;
    for (const Shard& shard : shards) {
      RC_ASSERT(part(shard).first == next);
      RC_ASSERT(part(shard).size() > 0);
      next = part(shard).end;
    }
    RC_ASSERT(next == size);
  };
  covers(query_heads, g.arch.heads);
  covers(ffn_columns, g.arch.kinds.front().ffn);
  covers(&Shard::vocabulary, g.arch.vocabulary);
}

RC_GTEST_PROP(ShardsProperty, QueryHeadsAreWithTheirKvHeads, ()) {
  const Group g = random_group();
  const std::int64_t group = g.arch.heads / g.arch.kinds.front().kv_heads;
  for (const Shard& shard : make_shards(g.arch, g.degree, g.shares)) {
    RC_ASSERT(shard.kv_heads.front().first == shard.heads.front().first / group);
    RC_ASSERT(shard.kv_heads.front().end == (shard.heads.front().end - 1) / group + 1);
    if (g.degree <= g.arch.kinds.front().kv_heads)
      RC_ASSERT(shard.heads.front().size() == shard.kv_heads.front().size() * group);
    else
      RC_ASSERT(shard.kv_heads.front().size() == 1);
  }
}

RC_GTEST_PROP(ShardsProperty, ALargerShareNeverHoldsLess, ()) {
  const Group g = random_group();
  const auto shards = make_shards(g.arch, g.degree, g.shares);
  for (std::size_t a = 0; a < g.shares.size(); ++a)
    for (std::size_t b = 0; b < g.shares.size(); ++b) {
      if (g.shares[a] <= g.shares[b]) continue;
      if (g.degree <= g.arch.kinds.front().kv_heads)
        RC_ASSERT(shards[a].heads.front().size() >= shards[b].heads.front().size());
      // The last rank also holds what is less than a grain of 8.
      RC_ASSERT(ffn_columns(shards[a]).size() + 7 >= ffn_columns(shards[b]).size());
      RC_ASSERT(shards[a].vocabulary.size() + 7 >= shards[b].vocabulary.size());
    }
}

RC_GTEST_PROP(ShardsProperty, NoBlockIsHeldTwiceWhereEachRankGetsOne, ()) {
  Group g = random_group();
  const DType type = *rc::gen::element(DType::q8_0, DType::q5_1, DType::q4_k, DType::q6_k);
  const std::int64_t block = dtype_row(type).block_values;
  g.arch.kinds.front().ffn = block * (g.degree + *rc::gen::inRange<std::int64_t>(0, 20));
  for (const TensorSpec& tensor : block_tensors(g.arch, 0)) {
    if (tensor.cut != TensorCut::ffn_in) continue;
    std::int64_t bytes = 0;
    for (const Shard& shard : make_shards(g.arch, g.degree, g.shares, type)) {
      RC_ASSERT(ffn_columns(shard).size() > 0 && ffn_columns(shard).first % block == 0);
      bytes += held_bytes(slice_of(g.arch, tensor, shard), held_type(g.arch, tensor, type));
    }
    RC_ASSERT(bytes == tensor.shape[0] * bytes_of(type, g.arch.kinds.front().ffn));
  }
}

RC_GTEST_PROP(ShardsProperty, ShareScaleDoesNotMatter, ()) {
  Group g = random_group();
  RC_PRE(!g.shares.empty());
  const auto shards = make_shards(g.arch, g.degree, g.shares);
  for (double& share : g.shares) share *= 4;
  RC_ASSERT(make_shards(g.arch, g.degree, g.shares) == shards);
}

RC_GTEST_PROP(ShardsProperty, SlicesPartitionEveryTensor, ()) {
  const Group g = random_group();
  const auto shards = make_shards(g.arch, g.degree, g.shares);
  std::vector<TensorSpec> tensors = block_tensors(g.arch, 0);
  for (const auto& list : {embedding_tensors(g.arch), head_tensors(g.arch)})
    tensors.insert(tensors.end(), list.begin(), list.end());
  for (const TensorSpec& tensor : tensors) {
    std::int64_t sum = 0;
    std::vector<Slice> distinct;
    for (const Shard& shard : shards) {
      const Slice slice = slice_of(g.arch, tensor, shard);
      RC_ASSERT(slice.elements() > 0);
      RC_ASSERT(slice.rows.end <= tensor.shape[0]);
      const bool repeated =
          !distinct.empty() && distinct.back().rows == slice.rows && distinct.back().columns == slice.columns;
      if (repeated) {
        RC_ASSERT(tensor.cut == TensorCut::replicated || tensor.cut == TensorCut::kv_heads);
      } else {
        distinct.push_back(slice);
        sum += slice.elements();
      }
    }
    RC_ASSERT(sum == tensor.elements());
  }
}

}  // namespace
}  // namespace motley
