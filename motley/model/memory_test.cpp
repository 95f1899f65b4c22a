#include <gtest/gtest.h>

#include <stdexcept>

#include "motley/model/model.hpp"

namespace motley {
namespace {

// Small enough to count by hand: hidden 8, 4 query and 2 KV heads of 2, FFN 16, vocabulary 32, gated, no biases.
Architecture small() {
  Architecture arch;
  arch.family = "llama";
  arch.layers = 2;
  arch.hidden = 8;
  arch.heads = 4;
  arch.kinds.front().kv_heads = 2;
  arch.kinds.front().head_dim = 2;
  arch.kinds.front().ffn = 16;
  arch.vocabulary = 32;
  arch.context = 64;
  return arch;
}

TEST(Memory, WeightsByHand) {
  const Architecture arch = small();
  const Shard whole = make_shards(arch, 1).front();
  // fp32: two norms of 8 (32 B, in 64 each); q, o 8x8 (256 B each); k, v 4x8 (128 B each); gate, up, down 16x8 (512 B
  // each).
  const std::int64_t block = 2 * 64 + 2 * 256 + 2 * 128 + 3 * 512;
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 1}}, whole, DType::fp32), block);
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 2}}, whole, DType::fp32), 2 * block);
  // The tables are 32x8 (1024 B); the final norm takes 64.
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true}, whole, DType::fp32), 1024);
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .head = true}, whole, DType::fp32), 1024 + 64);
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 2}, .embedding = true, .head = true}, whole, DType::fp32),
            2 * block + 2048 + 64);

  // Half of everything but the norms. k and v of one head: 2x8 fp32 (64 B).
  const Shard half = make_shards(arch, 2).front();
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 1}}, half, DType::fp32), 2 * 64 + 2 * 128 + 2 * 64 + 3 * 256);
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true}, half, DType::fp32), 512);
}

TEST(Memory, ATiedTableIsHeldOncePerRank) {
  Architecture arch = small();
  arch.tied_embeddings = true;
  const Shard whole = make_shards(arch, 1).front();
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true, .head = true}, whole, DType::fp32), 1024 + 64);
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .head = true}, whole, DType::fp32), 1024 + 64);
}

TEST(Memory, QuantisedWeightsAreTheMatricesOfTheBlocks) {
  const Architecture arch = small();
  const Shard whole = make_shards(arch, 1).front();
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 1}}, whole, DType::int8), 2 * 64 + 2 * 64 + 2 * 64 + 3 * 128);
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true}, whole, DType::int8), 512);  // bf16
}

TEST(Memory, TheBoxOfTheReference) {
  // Llama-2-70B over two cards: 0.797 GiB of weights per layer and card, so 20 layers do not fit into 16 GiB less 1
  // GiB.
  const Architecture arch = read_model("llama-2-70b").arch;
  const Shard half = make_shards(arch, 2).front();
  const double gib = 1024.0 * 1024 * 1024;
  const double layer = static_cast<double>(weight_bytes(arch, {.layers = {0, 1}}, half, DType::fp16)) / gib;
  EXPECT_NEAR(layer, 0.797, 0.0005);
  EXPECT_EQ(static_cast<int>(15 / layer), 18);
  EXPECT_EQ(static_cast<int>(15.5 / layer), 19);
}

TEST(Memory, KvCacheByHand) {
  const Architecture arch = small();
  const Shard whole = make_shards(arch, 1).front();
  // 33 tokens are 3 blocks of 16: 48 tokens x 2 KV heads x 2 x 4 B of keys, as much of values.
  EXPECT_EQ(kv_cache_bytes(arch, 0, whole, DType::fp32, 33, 16), 2 * 48 * 2 * 2 * 4);
  EXPECT_EQ(kv_cache_bytes(arch, 1, whole, DType::fp32, 0, 16), 0);
  const Shard half = make_shards(arch, 2).front();
  EXPECT_EQ(kv_cache_bytes(arch, 0, half, DType::fp32, 48, 16), 2 * 48 * 2 * 4);
  EXPECT_EQ(kv_cache_bytes(arch, 1, half, DType::fp16, 8, 8), 2 * 64) << "32 B of keys and of values, apart";

  const Architecture llama = read_model("llama-2-70b").arch;
  const Shard one = make_shards(llama, 1).front();
  // q8_0: 8 heads of 128 are 32 blocks of 34 bytes of keys per token, and as much of values.
  EXPECT_EQ(kv_bytes_per_token(llama, 0, DType::q8_0), 2 * 32 * 34);
  EXPECT_EQ(kv_cache_bytes(llama, 79, one, DType::q8_0, 1590, 16), 1600 * 2 * 32 * 34);
  EXPECT_EQ(80 * kv_cache_bytes(llama, 0, one, DType::fp16, 1600, 16),
            1600 * kv_bytes_per_token(llama, {0, 80}, DType::fp16));
  // With more ranks than KV heads each still holds a whole one.
  EXPECT_EQ(kv_cache_bytes(llama, 1, make_shards(llama, 16).front(), DType::fp16, 16, 16), 16 * 4096 / 8);
}

TEST(Memory, ActivationsByHand) {
  const Architecture arch = small();
  const Shard whole = make_shards(arch, 1).front();
  const StepLimits limits{.max_tokens = 32, .max_sequences = 4};
  // T = 32: ids and positions 256 B each; hidden, normed, query, attention, projected 32x8 fp32 = 1024 B each; key,
  // value 32x4 = 512 B each; gate, up 32x16 = 2048 B each; incoming 2 x 1024 B.
  const std::int64_t middle = 2 * 256 + 5 * 1024 + 2 * 512 + 2 * 2048 + 2048;
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}}, whole, DType::fp32, limits), middle);
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}, .embedding = true}, whole, DType::fp32, limits), middle - 2048);
  // The head adds last 4x8 fp32 = 128 B and logits 4x32 fp32 = 512 B.
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}, .head = true}, whole, DType::fp32, limits), middle + 128 + 512);
  // In bf16 what is fp32 or int64 by itself stays: ids and logits.
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}, .head = true}, whole, DType::bf16, limits),
            512 + (middle - 512) / 2 + 64 + 512);
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}, .head = true}, whole, DType::int8, limits),
            activation_bytes(arch, {.layers = {0, 1}, .head = true}, whole, DType::bf16, limits));

  // Half a shard: query, attention 512 B; key, value 256 B; gate, up 1024 B; logits 256 B, and all of them gathered 512
  // B.
  const Shard half = make_shards(arch, 2).front();
  EXPECT_EQ(activation_bytes(arch, {.layers = {0, 1}, .embedding = true, .head = true}, half, DType::fp32, limits),
            2 * 256 + 3 * 1024 + 2 * 512 + 2 * 256 + 2 * 1024 + 128 + 256 + 512);
}

TEST(Memory, BuffersOfAProjectedEmbedding) {
  Architecture arch = small();
  arch.embedding_dim = 4;
  arch.gated = false;
  const Shard whole = make_shards(arch, 1).front();
  std::vector<std::string> names;
  for (const Buffer& buffer : activation_buffers(arch, {.layers = {0, 2}, .embedding = true, .head = true}, whole,
                                                 DType::fp32, {.max_tokens = 8, .max_sequences = 2}))
    names.push_back(buffer.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"tokens", "positions", "hidden", "normed", "query", "key", "value", "attention",
                                      "projected", "up", "embedded", "last", "last_embedded", "logits"}));
  for (const Buffer& buffer : activation_buffers(arch, {.layers = {0, 2}, .head = true}, whole, DType::fp32, {}))
    EXPECT_NE(buffer.name, "embedded") << "where no token is looked up";
}

// Rows of 12 query heads of 24 are not whole blocks of 256: fitting() has blocks of 32 for them.
TEST(Memory, QuantisedMatricesAreWholeBlocksPerRow) {
  Architecture arch;
  arch.family = "llama";
  arch.layers = 1;
  arch.hidden = 256;
  arch.heads = arch.kinds.front().kv_heads = 12;
  arch.kinds.front().head_dim = 24;
  arch.kinds.front().ffn = 512;
  arch.vocabulary = 100;
  const std::vector<Shard> shards = make_shards(arch, 3, {0.5, 0.25, 0.25});
  const auto tensor = [&](std::string_view role) {
    for (const TensorSpec& spec : block_tensors(arch, 0))
      if (spec.role == role) return spec;
    throw std::logic_error("no such tensor");
  };
  const TensorSpec query = tensor("q.weight"), output = tensor("o.weight"), down = tensor("down.weight");
  EXPECT_EQ(held_type(arch, query, DType::q4_k), DType::q4_k);
  EXPECT_EQ(held_type(arch, output, DType::q4_k), DType::q5_0);
  EXPECT_EQ(held_type(arch, query, DType::iq4_xs), DType::iq4_xs);
  EXPECT_EQ(held_type(arch, output, DType::iq4_xs), DType::iq4_nl);
  EXPECT_EQ(held_type(arch, output, DType::mxfp4), DType::mxfp4);
  EXPECT_EQ(held_type(arch, tensor("attention_norm.weight"), DType::q4_k), DType::fp32);
  EXPECT_EQ(held_type(arch, embedding_tensors(arch).front(), DType::q4_k), DType::q4_k);
  EXPECT_EQ(held_type(arch, embedding_tensors(arch).front(), DType::int8), DType::bf16);
  // 6, 3 and 3 heads: columns [0, 144), [144, 216) and [216, 288), where 4.5 and 6.75 are blocks of 32.
  EXPECT_EQ(held_bytes(slice_of(arch, output, shards[0]), DType::q5_0), 256 * 5 * 22);
  EXPECT_EQ(held_bytes(slice_of(arch, output, shards[1]), DType::q5_0), 256 * 3 * 22);
  EXPECT_EQ(held_bytes(slice_of(arch, output, shards[2]), DType::q5_0), 256 * 3 * 22);
  EXPECT_EQ(whole_blocks(DType::q5_0, {144, 216}), (Span{128, 224}));
  EXPECT_EQ(held_bytes(slice_of(arch, down, shards[1]), DType::q4_k), 256 * 144);
  EXPECT_EQ(held_bytes(slice_of(arch, query, shards[1]), DType::q4_k), 72 * 144) << "rows are cut anywhere";
}

TEST(Memory, OfAFileEachTensorHasItsType) {
  Architecture arch;
  arch.family = "llama";
  arch.layers = 3;
  arch.hidden = arch.kinds.front().ffn = 256;
  arch.heads = arch.kinds.front().kv_heads = 4;
  arch.kinds.front().head_dim = 64;
  arch.vocabulary = 100;
  arch.tied_embeddings = true;
  std::map<std::string, DType> types;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    for (const TensorSpec& tensor : block_tensors(arch, layer)) types[tensor.name] = DType::q4_k;
  types["model.layers.1.mlp.down_proj.weight"] = DType::q6_k;
  types["model.embed_tokens.weight"] = DType::fp16;
  set_tensor_types(arch, types);
  EXPECT_EQ(kind_counts(arch, {0, 3}), (std::vector<std::int64_t>{2, 1})) << "those of unlike types are of two kinds";
  const Shard whole = make_shards(arch, 1).front();
  const std::int64_t norms = 2 * 256 * 4, small = 7 * 256 * 144 + norms, large = small + 256 * (210 - 144);
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 1}}, whole, DType::file), small);
  EXPECT_EQ(weight_bytes(arch, {.layers = {1, 2}}, whole, DType::file), large);
  EXPECT_EQ(weight_bytes(arch, {.layers = {0, 3}}, whole, DType::file), 2 * small + large);
  EXPECT_EQ(largest_block_bytes(arch, whole, DType::file), large);
  EXPECT_EQ(largest_block_bytes(arch, whole, DType::q4_k), small);
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true}, whole, DType::file), 100 * 256 * 2);
  set_tensor_types(arch, {{"model.embed_tokens.weight", DType::bf16}});
  EXPECT_EQ(weight_bytes(arch, {.layers = {}, .embedding = true}, whole, DType::file), 100 * 256 * 4)
      << "activations are fp32, and bf16 that meets them is held as fp32";
}

}  // namespace
}  // namespace motley
