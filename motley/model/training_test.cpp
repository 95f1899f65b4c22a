#include "motley/model/training.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

// Small enough to count by hand.
Architecture decoder() {
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

// Norms 2 x 2 x 8 and back 2 x 3 x 8, sums 2 x 3 x 8 each way, rotated heads 2 x 12 each way, FFN columns 3 x 16 and
// back 5 x 16.
TEST(ElementTraffic, ByHand) {
  const Architecture arch = decoder();
  const ElementTraffic traffic = element_traffic_per_token(arch, 0, make_shards(arch, 1).front());
  EXPECT_EQ(traffic.forward, 32 + 48 + 24 + 48);
  EXPECT_EQ(traffic.backward, 48 + 48 + 24 + 80);
}

TEST(ElementTraffic, RanksDivideHeadsAndColumnsButNotTheHiddenSize) {
  const Architecture arch = decoder();
  const ElementTraffic half = element_traffic_per_token(arch, 0, make_shards(arch, 2).front());
  EXPECT_EQ(half.forward, 80 + (24 + 48) / 2);
  EXPECT_EQ(half.backward, 96 + (24 + 80) / 2);
}

TEST(ElementTraffic, WithoutGateAndRotation) {
  Architecture arch = decoder();
  arch.gated = false;
  arch.position = PositionKind::learned;
  const ElementTraffic traffic = element_traffic_per_token(arch, 0, make_shards(arch, 1).front());
  EXPECT_EQ(traffic.forward, 80 + 2 * 16);
  EXPECT_EQ(traffic.backward, 96 + 3 * 16);
}

TEST(LossBytes, LogitsPassMemoryFiveTimes) {
  const Architecture arch = decoder();
  const ElementTraffic bytes = loss_bytes_per_token(make_shards(arch, 2).front());
  EXPECT_EQ(bytes.forward, 2 * 4 * 16);
  EXPECT_EQ(bytes.backward, 3 * 4 * 16);
}

}  // namespace
}  // namespace motley
