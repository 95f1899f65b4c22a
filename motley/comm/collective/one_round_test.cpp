#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "motley/comm/collective/one_round.hpp"

namespace motley {
namespace {

using Answer = OperationProgress::Answer;

// Rank 1 of three, eight bytes each.
class OneRoundTest : public testing::Test {
 protected:
  void SetUp() override {
    frame.shape = {.call = CollectiveCall::all_reduce,
                   .element = CollectiveElement::fp32,
                   .reduction = CollectiveReduction::sum,
                   .bytes = 8};
    round.start(frame, 1, 3, own, slots);
    frame.length = 8;
  }
  Answer from(int peer, const CollectiveFrame& said, std::byte value, std::size_t bytes = 8) {
    const std::vector<std::byte> payload(bytes, value);
    return round.on_frame(peer, said, payload, OperationProgress::Holding::no);
  }
  std::string cause() const { return round.refusal() ? round.refusal()->cause : ""; }

  CollectiveFrame frame;
  std::array<std::byte, 8> own{};
  std::array<std::byte, 24> slots{};
  OneRound round;
};

TEST_F(OneRoundTest, IsDoneWhenAllWasSentAndHeard) {
  EXPECT_EQ(round.awaited(), (std::vector<int>{0, 2}));
  EXPECT_EQ(round.next(1), nullptr) << "nothing to itself";
  for (const int peer : {0, 2}) {
    ASSERT_NE(round.next(peer), nullptr);
    EXPECT_EQ(round.next(peer)->frame.length, 8U);
    round.sent(peer);
    EXPECT_EQ(round.next(peer), nullptr);
    EXPECT_TRUE(round.needs(peer));
  }
  EXPECT_FALSE(round.done());
  EXPECT_EQ(from(0, frame, std::byte{5}), Answer::taken);
  EXPECT_FALSE(round.needs(0));
  EXPECT_FALSE(round.done());
  EXPECT_EQ(from(0, frame, std::byte{6}), Answer::taken) << "seen before";
  EXPECT_FALSE(round.done());
  EXPECT_EQ(slots[0], std::byte{5}) << "and not taken again";
  EXPECT_EQ(from(2, frame, std::byte{7}), Answer::taken);
  EXPECT_TRUE(round.done());
  EXPECT_EQ(slots[8], std::byte{0});
  EXPECT_EQ(slots[23], std::byte{7});
}

TEST_F(OneRoundTest, AnotherOperationIsRefusedThoughItsFrameWouldFit) {
  CollectiveFrame other = frame;
  other.shape.reduction = CollectiveReduction::max;
  EXPECT_TRUE(round.place(0, other).empty());
  EXPECT_EQ(from(0, other, std::byte{5}), Answer::refused);
  EXPECT_NE(cause().find("rank 0 as operation 0 runs all_reduce of 8 bytes"), std::string::npos) << cause();
  EXPECT_EQ(slots[0], std::byte{0});
}

TEST_F(OneRoundTest, AnotherPlanIsAnotherOperation) {
  CollectiveFrame other = frame;
  other.shape.plan = 9;
  EXPECT_EQ(from(2, other, std::byte{5}), Answer::refused);
  EXPECT_NE(cause().find("by another plan"), std::string::npos) << cause();
}

TEST_F(OneRoundTest, WhatNobodyAwaitsIsRefused) {
  const auto refused = [&](void (*change)(CollectiveFrame&), std::size_t bytes = 8) {
    CollectiveFrame other = frame;
    change(other);
    round.start(frame, 1, 3, own, slots);
    return round.place(0, other).empty() && from(0, other, std::byte{5}, bytes) == Answer::refused &&
           slots[0] == std::byte{0};
  };
  EXPECT_TRUE(refused([](CollectiveFrame& f) { f.chunk = 1; }));
  EXPECT_TRUE(refused([](CollectiveFrame& f) { f.step = 1; }));
  EXPECT_TRUE(refused([](CollectiveFrame& f) { f.offset = 4; }));
  EXPECT_TRUE(refused([](CollectiveFrame& f) { f.length = 4; }, 4));
  EXPECT_TRUE(refused([](CollectiveFrame& f) { f.length = 16; }, 16));
  round.start(frame, 1, 3, own, slots);
  EXPECT_EQ(from(0, frame, std::byte{5}, 4), Answer::refused) << "half of what the header promises";
}

}  // namespace
}  // namespace motley
