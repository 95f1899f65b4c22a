#include "motley/comm/collective/execution.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "motley/base/error.hpp"
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

// What is wrong with the program of rank 0 after a change to it.
std::string complaint(const std::function<void(CollectiveProgram&)>& change, int rank = 0) {
  CollectiveProgram program = halves();
  change(program);
  try {
    compile_schedule(program, rank, 4096, 1, 64);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_FALSE(error.hint().empty());
    return std::string(error.what()).substr(std::string("collective plan: ").size());
  }
  return "none";
}

TEST(CollectiveSchedule, ProgramsThatNobodyCouldRunAreRefused) {
  const auto step = [](std::size_t i, const auto& change) {
    return complaint([&](CollectiveProgram& p) { change(p.steps[0][i]); });
  };
  EXPECT_EQ(complaint([](CollectiveProgram&) {}), "none");
  EXPECT_EQ(complaint([](CollectiveProgram&) {}, 2), "2 ranks with 2 lists of steps cannot be run as rank 2");
  EXPECT_EQ(complaint([](CollectiveProgram& p) { p.steps.pop_back(); }),
            "2 ranks with 1 lists of steps cannot be run as rank 0");
  EXPECT_EQ(complaint([](CollectiveProgram& p) { p.bytes = 0; }), "0 bytes in 1 chunks");
  EXPECT_EQ(complaint([](CollectiveProgram& p) { p.chunks = 0; }), "128 bytes in 0 chunks");
  EXPECT_EQ(step(0, [](CollectiveStep& s) { s.peer = 0; }), "rank 0 step 0: peer 0 is not another rank") << "oneself";
  EXPECT_EQ(step(0, [](CollectiveStep& s) { s.peer = 2; }), "rank 0 step 0: peer 2 is not another rank");
  EXPECT_EQ(step(1, [](CollectiveStep& s) { s.chunk = 1; }),
            "rank 0 step 1: bytes [0, 64) of chunk 1 are out of range");
  EXPECT_EQ(step(1, [](CollectiveStep& s) { s.last = 129; }),
            "rank 0 step 1: bytes [0, 129) of chunk 0 are out of range");
  EXPECT_EQ(step(0, [](CollectiveStep& s) { s.last = 63; }),
            "rank 0 step 0: bytes [64, 63) of chunk 0 are out of range");
  EXPECT_EQ(step(2, [](CollectiveStep& s) { s.after = {2}; }),
            "rank 0 step 2: waits for step 2, which does not come before it");
  EXPECT_EQ(step(0, [](CollectiveStep& s) { s.first = 65; }),
            "rank 0 step 0 sends bytes [65, 128) of chunk 0 that rank 1 does not receive");
  EXPECT_EQ(complaint([](CollectiveProgram& p) { p.steps[0].erase(p.steps[0].begin()); }),
            "rank 1 waits for bytes [64, 128) of chunk 0 that rank 0 does not send");
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
