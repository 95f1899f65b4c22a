#include "motley/model/caches.hpp"

#include <gtest/gtest.h>

#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// One KV head of 32 values: 64 bytes of keys of a token in bf16.
Architecture windowed() {
  Architecture arch;
  arch.family = "llama";
  arch.layers = 4;
  arch.hidden = 64;
  arch.heads = 2;
  arch.kinds.front().kv_heads = 1;
  arch.kinds.front().head_dim = 32;
  arch.vocabulary = 32;
  arch.context = 4096;
  arch.kinds.resize(2, arch.kinds.front());
  arch.kinds[0].window = 20;
  for (LayerKind& kind : arch.kinds) kind.ffn = 16;
  arch.kind_of_layer = {0, 1, 0, 0};
  return arch;
}

constexpr StepLimits windowed_step{.max_tokens = 40, .max_sequences = 3, .block_tokens = 16};

TEST(Caches, SlotsHaveTheBlocksOfAWindowWhereThatTakesLess) {
  const Architecture arch = windowed();
  EXPECT_EQ(window_blocks(16, 16), 2);
  EXPECT_EQ(window_blocks(17, 16), 3);
  const CacheRoom room{.tokens = 1000, .sequences = 5};  // 63 blocks; of slots 5 x 3, and 3 + 3 for a step
  EXPECT_EQ(slot_blocks(arch.kinds[0], room, windowed_step), 3);
  EXPECT_EQ(cache_blocks(arch.kinds[0], room, windowed_step), 21);
  EXPECT_EQ(slot_blocks(arch.kinds[1], room, windowed_step), 0) << "it sees all tokens";
  EXPECT_EQ(cache_blocks(arch.kinds[1], room, windowed_step), 63);
  for (const CacheRoom& whole : {CacheRoom{1000, 0}, CacheRoom{21 * 16, 5}}) {
    EXPECT_EQ(slot_blocks(arch.kinds[0], whole, windowed_step), 0);
    EXPECT_EQ(cache_blocks(arch.kinds[0], whole, windowed_step), (whole.tokens + 15) / 16);
  }
}

TEST(Caches, BytesAreThoseOfEachKind) {
  const Architecture arch = windowed();
  const Shard shard = make_shards(arch, 1).front();
  const CacheRoom room{.tokens = 1000, .sequences = 5};
  const std::int64_t block = 16 * 2 * 64;
  EXPECT_EQ(cache_bytes(arch, 0, shard, DType::bf16, room, windowed_step), 21 * block);
  EXPECT_EQ(cache_bytes(arch, 1, shard, DType::bf16, room, windowed_step), 63 * block);
  EXPECT_EQ(cache_bytes(arch, LayerRange{1, 4}, shard, DType::bf16, room, windowed_step), (63 + 2 * 21) * block);
  EXPECT_EQ(kv_bytes_of(arch, {0, 4}, DType::bf16, 10), 4 * 10 * 128);
  EXPECT_EQ(kv_bytes_of(arch, {0, 4}, DType::bf16, 100), (3 * 20 + 100) * 128);
}

// A slot has the last blocks up to where a sequence has been computed.
TEST(Caches, ASlotReachesBackAsFarAsItsBlocks) {
  const std::int64_t blocks = window_blocks(20, 16);
  EXPECT_TRUE(slot_reaches(blocks, 20, 16, 48, 48)) << "everything is there";
  for (std::int64_t position = 1; position < 200; ++position) {
    EXPECT_TRUE(slot_reaches(blocks, 20, 16, position, position));
    EXPECT_TRUE(slot_reaches(blocks, 20, 16, position, position + 1)) << "a decode that was lost";
  }
  EXPECT_TRUE(slot_reaches(blocks, 20, 16, 68, 96)) << "tokens from 49 on, and blocks from 48 on";
  EXPECT_FALSE(slot_reaches(blocks, 20, 16, 66, 96)) << "token 47";
  EXPECT_FALSE(slot_reaches(blocks, 20, 16, 68, 97));
}

// 24,576 bytes of each token on the twelve full layers, and 128 tokens of 2,048 bytes on the others.
TEST(Caches, GptOssKeepsHalfOfWhatItWouldWithoutWindows) {
  const Architecture arch = read_model("gpt-oss-20b").arch;
  const Shard shard = make_shards(arch, 1).front();
  const StepLimits step;
  const std::int64_t tokens = 8000, expected = tokens * 24'576 + 12 * 128 * 2'048;
  const std::int64_t under_way = 12 * (step.max_tokens + step.max_sequences * step.block_tokens) * 2'048;
  const auto bytes =
      static_cast<double>(cache_bytes(arch, {0, arch.layers}, shard, DType::bf16, {tokens, 1}, step) - under_way);
  EXPECT_NEAR(bytes, static_cast<double>(expected), 0.02 * static_cast<double>(expected));
  EXPECT_LT(bytes, 0.52 * static_cast<double>(cache_bytes(arch, {0, arch.layers}, shard, DType::bf16, {tokens}, step)));
  EXPECT_EQ(kv_bytes_of(arch, {0, arch.layers}, DType::bf16, static_cast<double>(tokens)), expected);
}

// Ten layers of 2,048 bytes of a token, and on thirty a matrix of 128 x 128 for each of 32 heads, and 3 inputs of 8,192
// channels.
TEST(Caches, DeltaNetsKeepAStateInEachSlot) {
  const Architecture arch = read_model("qwen3.5-35b-a3b").arch;
  EXPECT_TRUE(has_states(arch));
  EXPECT_FALSE(has_states(windowed()));
  constexpr std::int64_t states = 30 * 4 * (32 * 128 * 128 + 8192 * 3), token = 10 * 2048;
  EXPECT_EQ(states, 65'863'680) << "62.8 MiB";
  const LayerRange all{0, arch.layers};
  const Shard shard = make_shards(arch, 1).front();
  EXPECT_EQ(cache_bytes(arch, all, shard, DType::bf16, {8000, 3}, {}), 8000 * token + 3 * states);
  EXPECT_EQ(kv_bytes_of(arch, all, DType::bf16, 100), 100 * token + states);
  const Shard half = make_shards(arch, 2).front();
  EXPECT_EQ(cache_bytes(arch, all, half, DType::bf16, {8000, 3}, {}), (8000 * token + 3 * states) / 2);
}

}  // namespace
}  // namespace motley
