#include "motley/engine/stage/slot_rows.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "motley/model/caches.hpp"

namespace motley {
namespace {

using Blocks = std::vector<std::int32_t>;

Blocks table(const SlotRows& rows, std::size_t part) {
  return {rows.sequences.at(part).blocks.begin(), rows.sequences.at(part).blocks.end()};
}

// A window of 6 touches three blocks of 4.
TEST(SlotRows, ADecodeGoesRoundInItsSlot) {
  const SlotRows rows = slot_rows({{0, 1, 3, {}, 0}, {1, 1, 13, {}, 2}}, 6, 4, 5);
  EXPECT_EQ(table(rows, 0), (Blocks{0}));
  EXPECT_EQ(table(rows, 1), (Blocks{6, 7, 8, 6})) << "block 3 where block 0 was";
  EXPECT_TRUE(rows.from.empty());
  EXPECT_EQ(rows.sequences[1].first_row, 1);
  EXPECT_EQ(rows.sequences[1].position, 13);
}

TEST(SlotRows, ALongPartLiesBehindTheSlotsUntilItIsDone) {
  const SlotRows rows = slot_rows({{0, 20, 6, {}, 1}, {20, 1, 0, {}, 0}}, 6, 4, 5);
  EXPECT_EQ(table(rows, 0), (Blocks{3, 4, 15, 16, 17, 18, 19})) << "what had begun before is where it was";
  EXPECT_EQ(rows.from, (std::vector<std::int64_t>{17, 18, 19}));
  EXPECT_EQ(rows.to, (std::vector<std::int64_t>{4, 5, 3}));
  EXPECT_EQ(table(rows, 1), (Blocks{0}));
}

// Whatever the parts: each token finds what it looks back on, and a step's own blocks are as many as are counted.
TEST(SlotRows, EveryTokenFindsItsWindow) {
  std::mt19937_64 random(7);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int repetition = 0; repetition < 300; ++repetition) {
    const std::int64_t block_tokens = pick(1, 9), window = pick(1, 30), slots = pick(1, 5);
    const StepLimits limits{.max_tokens = pick(slots, 60), .max_sequences = slots, .block_tokens = block_tokens};
    LayerKind kind;
    kind.window = window;
    const std::int64_t blocks = cache_blocks(kind, {.tokens = 1 << 20, .sequences = slots}, limits);
    std::map<std::int64_t, std::pair<std::int32_t, std::int64_t>> cache;  // slot and position, by place
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(slots));
    for (int step = 0; step < 40; ++step) {
      std::vector<SequenceRows> parts;
      std::int64_t left = limits.max_tokens;
      for (std::int32_t slot = 0; slot < slots && left > 0; ++slot) {
        std::int64_t& position = lengths[static_cast<std::size_t>(slot)];
        if (pick(0, 9) == 0) position = 0;  // another sequence
        const std::int64_t count = pick(0, 1) == 0 ? 1 : pick(1, left);
        parts.push_back({limits.max_tokens - left, count, position, {}, slot});
        left -= count;
        position += count;
      }
      const SlotRows rows = slot_rows(parts, window, block_tokens, slots);
      const auto place = [&](const SequenceRows& part, std::int64_t position) {
        const std::int64_t block = part.blocks[static_cast<std::size_t>(position / block_tokens)];
        EXPECT_LT(block, blocks);
        return block * block_tokens + position % block_tokens;
      };
      std::set<std::int64_t> written;
      for (const SequenceRows& part : rows.sequences)
        for (std::int64_t i = part.position; i < part.position + part.count; ++i) {
          ASSERT_TRUE(written.insert(place(part, i)).second) << "two tokens in one place";
          cache[place(part, i)] = {part.slot, i};
        }
      for (const SequenceRows& part : rows.sequences)
        for (std::int64_t i = std::max<std::int64_t>(0, part.position - window + 1); i < part.position + part.count;
             ++i)
          ASSERT_EQ(cache[place(part, i)], (std::pair{part.slot, i}));
      std::map<std::int64_t, std::pair<std::int32_t, std::int64_t>> before = cache;
      for (std::size_t i = 0; i < rows.from.size(); ++i)
        for (std::int64_t token = 0; token < block_tokens; ++token)
          cache[rows.to[i] * block_tokens + token] = before[rows.from[i] * block_tokens + token];
    }
  }
}

}  // namespace
}  // namespace motley
