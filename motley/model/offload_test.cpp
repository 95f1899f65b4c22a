#include "motley/model/offload.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

std::string drawn(const TierCounts& counts) {
  std::string text;
  for (const Tier tier : spread(counts)) text += tier == Tier::device ? '.' : tier == Tier::host ? 'h' : 'd';
  return text;
}

TEST(Offload, LayersThatAreAwayAreSpreadEvenly) {
  EXPECT_EQ(drawn({8, 0, 0}), "........");
  EXPECT_EQ(drawn({0, 8, 0}), "hhhhhhhh");
  EXPECT_EQ(drawn({6, 0, 2}), "...d...d");
  EXPECT_EQ(drawn({4, 2, 2}), ".h.d.h.d");
  EXPECT_EQ(drawn({2, 5, 1}), ".hhh.hhd");
}

TEST(Offload, SharesAreWholeUnits) {
  for (std::int64_t device = 0; device <= 13; ++device)
    for (std::int64_t host = 0; device + host <= 13; ++host) {
      const TierCounts counts{device, host, 13 - device - host};
      EXPECT_EQ(counts_of(shares_of(counts), 13), counts);
    }
  EXPECT_THROW(counts_of({0.3, 0.7, 0}, 8), Error);
  EXPECT_THROW(counts_of({0.5, 0.25, 0}, 8), Error);
  EXPECT_THROW(counts_of({1.5, -0.5, 0}, 8), Error);
  EXPECT_THROW(place_layers({.activations = {0, 0, 1}}, 8), Error);
}

class OffloadBytes : public testing::Test {
 protected:
  const Architecture arch = read_model(MOTLEY_SOURCE_DIR "/data/models/tales").arch;
  const Shard shard = make_shards(arch, 1).front();
  const ModelPart whole = whole_model(arch);
  const StepLimits limits{.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};

  PlacedBytes bytes(const Offload& offload, bool staged = false) const {
    return placed_bytes(arch, whole, shard, DType::fp32, DType::fp32, {640}, limits, place_layers(offload, arch.layers),
                        staged);
  }
  std::int64_t block() const { return largest_block_bytes(arch, shard, DType::fp32); }
  std::int64_t kv(std::int64_t layers, std::int64_t tokens) const {
    return layers * kv_cache_bytes(arch, 0, shard, DType::fp32, tokens, 16);
  }
};

TEST_F(OffloadBytes, AllOnTheDeviceIsWhatAResidentStageHolds) {
  const auto placed = bytes({});
  EXPECT_EQ(placed.device.weights, weight_bytes(arch, whole, shard, DType::fp32));
  EXPECT_EQ(placed.device.kv, kv(arch.layers, 640));
  EXPECT_EQ(placed.device.activations, activation_bytes(arch, whole, shard, DType::fp32, limits));
  EXPECT_EQ(placed.host.weights + placed.host.kv + placed.disk.weights + placed.disk.kv, 0);
}

TEST_F(OffloadBytes, StreamedLayersNeedTwoBuffers) {
  const auto placed = bytes({.weights = shares_of({arch.layers - 3, 1, 2})});
  EXPECT_EQ(placed.device.weights, weight_bytes(arch, whole, shard, DType::fp32) - 3 * block() + 2 * block());
  EXPECT_EQ(placed.host.weights, block());
  EXPECT_EQ(placed.disk.weights, 2 * block());
  EXPECT_EQ(bytes({.weights = shares_of({arch.layers - 3, 1, 2})}, true).host.weights, 3 * block());
}

TEST_F(OffloadBytes, KeysAndValuesNeedBuffersOfOneMicroBatch) {
  const TierShares shares = shares_of({arch.layers - 3, 2, 1});
  const auto moved = bytes({.batches = 2, .kv = shares});
  EXPECT_EQ(moved.device.kv, kv(arch.layers - 3, 640) + 2 * kv(1, 320));
  EXPECT_EQ(moved.host.kv, kv(2, 640));
  EXPECT_EQ(moved.disk.kv, kv(1, 640));
  const auto in_place = bytes({.batches = 2, .kv = shares, .cpu_attention = true});
  EXPECT_EQ(in_place.device.kv, kv(arch.layers - 3, 640));
  EXPECT_EQ(in_place.host.kv, kv(2, 640) + 2 * kv(1, 320));
}

TEST_F(OffloadBytes, HiddenStatesOfEveryMicroBatchHaveAHome) {
  const std::int64_t hidden = 64 * arch.hidden * 4;
  const auto placed = bytes({.batches = 4, .activations = shares_of({1, 3, 0})});
  EXPECT_EQ(placed.device.activations, activation_bytes(arch, whole, shard, DType::fp32, limits) + hidden);
  EXPECT_EQ(placed.host.activations, 3 * hidden);
}

}  // namespace
}  // namespace motley
