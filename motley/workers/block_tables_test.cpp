#include "motley/workers/block_tables.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using Blocks = std::vector<std::int32_t>;

class BlockTablesTest : public testing::Test {
 protected:
  // The whole table, or what is wrong.
  Blocks told(std::uint64_t sequence, std::int32_t known, Blocks blocks) {
    Step step{.step = 1, .sequences = {{.sequence = sequence, .blocks = std::move(blocks), .known_blocks = known}}};
    tables_.complete(step);
    EXPECT_EQ(step.sequences[0].known_blocks, 0);
    return step.sequences[0].blocks;
  }
  std::string refused(std::uint64_t sequence, std::int32_t known, Blocks blocks) {
    try {
      told(sequence, known, std::move(blocks));
      return "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      return error.message();
    }
  }

  BlockTables tables_{8};
};

TEST_F(BlockTablesTest, GrowByWhatIsNew) {
  EXPECT_EQ(told(1, 0, {3, 5}), (Blocks{3, 5}));
  EXPECT_EQ(told(2, 0, {0}), (Blocks{0}));
  EXPECT_EQ(told(1, 2, {}), (Blocks{3, 5}));
  EXPECT_EQ(told(1, 2, {4, 1}), (Blocks{3, 5, 4, 1}));
  EXPECT_EQ(told(1, 0, {5, 2}), (Blocks{5, 2})) << "it was preempted";
  EXPECT_EQ(told(2, 1, {3, 4}), (Blocks{0, 3, 4})) << "blocks that it gave back";
}

TEST_F(BlockTablesTest, SeveralHoldTheSameBlocks) {
  told(1, 0, {3, 5});
  EXPECT_EQ(told(2, 0, {3, 6}), (Blocks{3, 6}));
  EXPECT_EQ(told(1, 2, {7}), (Blocks{3, 5, 7}));
}

TEST_F(BlockTablesTest, ForgetASequenceThatIsGone) {
  told(1, 0, {3, 5});
  Step step{.step = 1, .sequences = {{.sequence = 2, .blocks = Blocks{5}}}, .gone = std::vector<std::uint64_t>{1, 77}};
  tables_.complete(step);
  EXPECT_EQ(tables_.sequences(), 1u);
  EXPECT_EQ(refused(1, 2, {4}), "step 1: sequence 1: its next blocks follow 2 others, but 0 are known");
}

TEST_F(BlockTablesTest, HoldNoMoreSequencesThanBlocks) {
  for (std::uint64_t sequence = 10; sequence < 18; ++sequence) told(sequence, 0, {0});
  EXPECT_EQ(refused(18, 0, {0}), "step 1: sequence 18: 8 others hold all 8 blocks of the cache");
  EXPECT_EQ(told(17, 1, {2}), (Blocks{0, 2}));
}

TEST_F(BlockTablesTest, BelieveNothing) {
  EXPECT_EQ(refused(1, 2, {4}), "step 1: sequence 1: its next blocks follow 2 others, but 0 are known");
  EXPECT_EQ(refused(1, 0, {}), "step 1: sequence 1: it has no blocks");
  EXPECT_EQ(refused(1, -1, {4}), "step 1: sequence 1: its next blocks follow -1 others, but 0 are known");
  EXPECT_EQ(refused(1, 0, {8}), "step 1: sequence 1: block 8 is outside of the 8 blocks of the cache");
  EXPECT_EQ(refused(1, 0, {-1}), "step 1: sequence 1: block -1 is outside of the 8 blocks of the cache");
  EXPECT_EQ(refused(1, 0, {2, 2}), "step 1: sequence 1: block 2 is listed twice");
  told(3, 0, {4});
  EXPECT_EQ(refused(3, 1, {4}), "step 1: sequence 3: block 4 is listed twice");
}

}  // namespace
}  // namespace motley
