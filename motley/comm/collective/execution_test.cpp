#include "motley/comm/collective/execution.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "motley/comm/collective/collective_schedule.hpp"

namespace motley {
namespace {

// An all_reduce of two ranks: each sends a half, adds what comes, sends the sum and takes the other half's.
CollectiveProgram halves() {
  using enum CollectiveStepKind;
  CollectiveProgram program{.ranks = 2, .bytes = 128};
  program.steps = {{{send, 1, 0, 64, 128}, {reduce, 1, 0, 0, 64}, {send, 1, 0, 0, 64}, {recv, 1, 0, 64, 128}},
                   {{send, 0, 0, 0, 64}, {reduce, 0, 0, 64, 128}, {send, 0, 0, 64, 128}, {recv, 0, 0, 0, 64}}};
  return program;
}

// Rank 0, 20,000 bytes in chunks of 4096: the fifth has 3616 of them.
Execution::Answer after(const std::function<void(CollectiveFrame&)>& change, std::int64_t missing_bytes = 0) {
  std::vector<std::byte> data(20'000);
  const CollectiveSchedule schedule = compile_schedule(halves(), 0, 4096, 1, 64);
  CollectiveFrame frame{.shape = {.call = CollectiveCall::all_reduce,
                                  .element = CollectiveElement::fp32,
                                  .bytes = 20'000,
                                  .plan = schedule.hash}};
  Execution execution;
  execution.start(schedule, frame, {data}, 8);
  frame.length = 2048;
  change(frame);
  const std::vector<std::byte> payload(static_cast<std::size_t>(frame.length - missing_bytes));
  return execution.on_frame(1, frame, payload, Execution::Holding::yes);
}

TEST(Execution, TakesTheFramesOfItsScheduleAndNoOthers) {
  using enum Execution::Answer;
  EXPECT_EQ(after([](CollectiveFrame&) {}), taken);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.step = 1; }), taken);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.chunk = 4; }), taken);
  EXPECT_EQ(after([](CollectiveFrame& f) {
              f.chunk = 4;
              f.step = 1;
              f.length = 3616 - 2048;
            }),
            taken);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.chunk = 5; }), refused);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.step = 2; }), refused);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.offset = 64; }), refused);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.length = 2047; }), refused);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.length = 2049; }), refused);
  EXPECT_EQ(after([](CollectiveFrame& f) { f.shape.bytes += 4; }), refused);
  EXPECT_EQ(after([](CollectiveFrame&) {}, 1), refused) << "less than the header promises";
  EXPECT_EQ(after([](CollectiveFrame& f) {
              f.chunk = 4;
              f.step = 1;
            }),
            refused)
      << "the last chunk is cut short";
}

}  // namespace
}  // namespace motley
