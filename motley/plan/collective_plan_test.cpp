#include <gtest/gtest.h>

#include <numeric>

#include "motley/base/error.hpp"
#include "motley/base/reference_test.hpp"
#include "motley/plan/collective_plan.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {
namespace {

CollectiveShape shape_of(CollectiveOperation operation, int ranks, std::int64_t elements = 60) {
  return {
      .operation = operation, .ranks = ranks, .root = 0, .bytes = 4 * elements * ranks, .chunks = 1, .alignment = 4};
}

std::string first_wrong(const CollectiveProgram& program) {
  const auto wrong = check_program(program);
  return wrong.empty() ? "" : wrong[0].place + ": " + wrong[0].what;
}

constexpr CollectiveOperation grouped[] = {CollectiveOperation::all_reduce, CollectiveOperation::reduce_scatter,
                                           CollectiveOperation::all_gather};

TEST(CollectivePrograms, ComputeTheirCollective) {
  for (const auto operation : grouped) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      EXPECT_EQ(first_wrong(direct_program(shape_of(operation, ranks), {})), "") << ranks;
      std::vector<int> order(static_cast<std::size_t>(ranks));
      std::iota(order.rbegin(), order.rend(), 0);
      EXPECT_EQ(first_wrong(ring_program(shape_of(operation, ranks), order)), "") << ranks;
    }
    for (const auto& [ranks, factors] : std::vector<std::pair<int, std::vector<int>>>{
             {8, {2, 2, 2}}, {12, {6, 2}}, {12, {2, 6}}, {7, {4, 2}}, {11, {3, 2, 2}}, {13, {4, 4}}, {24, {8, 3}}})
      EXPECT_EQ(first_wrong(factored_program(shape_of(operation, ranks), factors)), "") << ranks;
  }
}

TEST(CollectivePrograms, TreesUpAndDown) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int degree = 1; degree <= 3; ++degree)
      for (int root = 0; root < ranks; ++root) {
        auto shape = shape_of(CollectiveOperation::broadcast, ranks);
        shape.root = root;
        EXPECT_EQ(first_wrong(tree_program(shape, tree_parents(ranks, root, degree))), "");
        shape.operation = CollectiveOperation::all_reduce;
        EXPECT_EQ(first_wrong(tree_program(shape, tree_parents(ranks, root, degree))), "");
      }
}

TEST(CollectivePrograms, WeightsSetWhatRanksOwn) {
  const auto shape = shape_of(CollectiveOperation::all_reduce, 4, 100);
  const auto program = direct_program(shape, {0.5, 0.25, 0.25, 0});
  EXPECT_EQ(first_wrong(program), "");
  std::int64_t received = 0;
  for (const auto& step : program.steps[0])
    if (step.kind == CollectiveStepKind::reduce) received += step.last - step.first;
  EXPECT_EQ(received, 3 * shape.bytes / 2);
  for (const auto& step : program.steps[3]) EXPECT_NE(step.kind, CollectiveStepKind::reduce);
}

TEST(CollectivePrograms, BordersAreAligned) {
  CollectiveShape shape{
      .operation = CollectiveOperation::all_reduce, .ranks = 7, .root = 0, .bytes = 1000, .chunks = 1, .alignment = 8};
  for (const auto& steps : direct_program(shape, {1, 2, 3, 4, 5, 6, 7}).steps)
    for (const auto& step : steps) {
      EXPECT_EQ(step.first % 8, 0);
      EXPECT_TRUE(step.last % 8 == 0 || step.last == shape.bytes);
    }
}

TEST(CollectivePrograms, ChunksThatFit) {
  CollectiveShape shape{.operation = CollectiveOperation::all_reduce,
                        .ranks = 8,
                        .root = 0,
                        .bytes = 400'000'000,
                        .chunks = 1,
                        .alignment = 16};
  EXPECT_EQ(chunks_that_fit(shape, 100), 100);
  EXPECT_EQ(chunks_that_fit(shape, 99), 80);
  shape.bytes = 4 * 1'000'003;  // a prime number of elements
  EXPECT_EQ(chunks_that_fit(shape, 64), 1);
}

TEST(CollectivePrograms, WhatCannotBeIsRefused) {
  EXPECT_THROW(factored_group(8, {2, 2}), Error);
  EXPECT_THROW(factored_group(8, {1, 8}), Error);
  EXPECT_THROW(direct_program({.operation = CollectiveOperation::reduce_scatter, .ranks = 3, .bytes = 10}, {}), Error);
  EXPECT_THROW(direct_program({.operation = CollectiveOperation::all_reduce, .ranks = 3, .bytes = 10, .chunks = 4}, {}),
               Error);
  const auto cause = [](const auto& make) {
    try {
      make();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const CollectiveShape down{.operation = CollectiveOperation::broadcast, .ranks = 3, .root = 3, .bytes = 12};
  EXPECT_EQ(cause([&] { tree_program(down, {-1, 0, 0}); }), "rank 3 cannot be the root of 3 ranks");
  EXPECT_EQ(cause([] {
              ring_program({.ranks = 2, .bytes = -8}, {0, 1});
            }),
            "-8 bytes in 1 chunks, aligned to 16 bytes");
  const CollectiveShape around{.operation = CollectiveOperation::broadcast, .ranks = 2, .bytes = 8};
  EXPECT_EQ(cause([&] { ring_program(around, {0, 1}); }), "a broadcast goes down a tree, not along groups");
  const CollectiveShape scattered{.operation = CollectiveOperation::reduce_scatter, .ranks = 2, .bytes = 8};
  EXPECT_EQ(cause([&] { tree_program(scattered, {-1, 0}); }), "one tree makes a broadcast or an all_reduce");
}

TEST(CollectiveCheck, FindsWhatIsWrong) {
  const auto good = direct_program(shape_of(CollectiveOperation::all_reduce, 3), {});
  auto lost = good;
  lost.steps[1].pop_back();
  EXPECT_NE(first_wrong(lost).find("never receives"), std::string::npos) << first_wrong(lost);

  auto awaited = good;  // what rank 0 receives first is not sent
  std::erase_if(awaited.steps[1], [](const CollectiveStep& step) { return step.kind == CollectiveStepKind::send; });
  EXPECT_EQ(first_wrong(awaited), "program[0][3]: rank 1 never sends [0, 240) of chunk 0 to rank 0");

  auto twice = good;  // rank 0's share is sent a second time
  for (const auto& step : good.steps[1])
    if (step.kind == CollectiveStepKind::send && step.peer == 0) {
      twice.steps[1].insert(twice.steps[1].begin(), step);
      break;
    }
  for (const auto& step : good.steps[0])
    if (step.kind == CollectiveStepKind::reduce && step.peer == 1) {
      twice.steps[0].insert(twice.steps[0].begin(), step);
      break;
    }
  EXPECT_NE(first_wrong(twice).find("twice"), std::string::npos) << first_wrong(twice);

  auto half = good;
  half.operation = CollectiveOperation::all_reduce;
  for (auto& steps : half.steps) steps.resize(4);  // the reduce-scatter alone
  EXPECT_NE(first_wrong(half).find("lacks"), std::string::npos) << first_wrong(half);

  CollectiveProgram circle{.operation = CollectiveOperation::all_reduce, .ranks = 2, .bytes = 8, .steps = {}};
  circle.steps = {{{CollectiveStepKind::reduce, 1, 0, 0, 8}, {CollectiveStepKind::send, 1, 0, 0, 8}},
                  {{CollectiveStepKind::reduce, 0, 0, 0, 8}, {CollectiveStepKind::send, 0, 0, 0, 8}}};
  EXPECT_NE(first_wrong(circle).find("waits forever"), std::string::npos) << first_wrong(circle);

  auto outside = good;
  outside.steps[0][0].last = good.bytes + 1;
  EXPECT_NE(first_wrong(outside).find("is not a range"), std::string::npos);
}

TEST(CollectiveCheck, FormIsCheckedToTheBorder) {
  const auto good = direct_program(shape_of(CollectiveOperation::all_reduce, 3), {});
  const auto with = [&](void (*change)(CollectiveProgram&)) {
    auto program = good;
    change(program);
    return first_wrong(program);
  };
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps.pop_back(); }), "program: 3 ranks have 2 lists of steps");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.ranks = 0; }), "program: 0 ranks have 3 lists of steps");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.chunks = 7; }), "chunks: 720 bytes cannot be cut into 7 equal chunks");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[0][0].chunk = 1; }), "program[0][0]: chunk 1 does not exist");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[0][0].chunk = -1; }), "program[0][0]: chunk -1 does not exist");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[1][0].peer = 1; }),
            "program[1][0]: rank 1 cannot be a peer of rank 1");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[1][0].peer = 3; }),
            "program[1][0]: rank 3 cannot be a peer of rank 1");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[0][1].after = {static_cast<int>(p.steps[0].size())}; }),
            "program[0][1]: waits for step 8, which does not exist");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.steps[0][1].after = {1}; }),
            "program[0][1]: waits for step 1, which does not exist");
  EXPECT_EQ(with([](CollectiveProgram& p) { p.root = 3; }), "root: is not a rank");
  EXPECT_EQ(with([](CollectiveProgram& p) {
              p.operation = CollectiveOperation::all_gather;
              p.bytes = 721;
            }),
            "bytes: 3 ranks cannot have equal blocks of 721 bytes");
}

TEST(CollectiveCheck, NothingDoneIsNoCollective) {
  const auto of = [](CollectiveOperation operation) {
    return first_wrong({.operation = operation, .ranks = 2, .bytes = 8, .steps = {{}, {}}});
  };
  EXPECT_EQ(of(CollectiveOperation::all_reduce), "rank 0: [0, 8) of chunk 0 lacks contributions");
  EXPECT_EQ(of(CollectiveOperation::reduce_scatter), "rank 0: [0, 4) of chunk 0 lacks contributions");
  EXPECT_EQ(of(CollectiveOperation::all_gather), "rank 0: [4, 8) of chunk 0 is not rank 1's");
  EXPECT_EQ(of(CollectiveOperation::broadcast), "rank 1: [0, 8) of chunk 0 is not the root's");
}

// Each sends what it has and takes the other's in its place: neither may be overwritten before it is sent.
TEST(CollectiveCheck, WhatIsStillToBeSentIsNotOverwritten) {
  using enum CollectiveStepKind;
  EXPECT_EQ(
      first_wrong({.operation = CollectiveOperation::all_reduce,
                   .ranks = 2,
                   .bytes = 8,
                   .steps = {{{send, 1, 0, 0, 8}, {recv, 1, 0, 0, 8}}, {{send, 0, 0, 0, 8}, {recv, 0, 0, 0, 8}}}}),
      "program[0][0]: waits forever");
}

TEST(CollectiveCheck, StepsMayBeListedLate) {
  // Rank 1 lists a receive that comes last before a send that the others wait for: ranges are disjoint, no rank waits.
  CollectiveProgram program{.operation = CollectiveOperation::all_reduce, .ranks = 2, .bytes = 8, .steps = {}};
  using enum CollectiveStepKind;
  program.steps = {{{send, 1, 0, 0, 4}, {reduce, 1, 0, 4, 8}, {send, 1, 0, 4, 8}, {recv, 1, 0, 0, 4}},
                   {{recv, 0, 0, 4, 8, {2}}, {reduce, 0, 0, 0, 4}, {send, 0, 0, 4, 8}, {send, 0, 0, 0, 4}}};
  EXPECT_NE(first_wrong(program), "");  // the receive of [4, 8) stands before the send of it
  std::swap(program.steps[1][0], program.steps[1][2]);
  program.steps[1][2].after = {0};
  EXPECT_EQ(first_wrong(program), "");
}

CollectivePlan example_plan() {
  CollectivePlan plan;
  const std::string text = R"(
format = "motley.cluster/1"
name = "three"
machine = [{ name = "m", count = 3, devices = ["A100"] }]
)";
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(text, "test"), "test"), "test");
  plan.program = direct_program(shape_of(CollectiveOperation::all_reduce, 3), {});
  plan.program.layout = "direct";
  plan.program.steps[0][2].after = {0, 1};
  return plan;
}

std::string reading_error(const Value& document) {
  try {
    (void)read_plan<CollectivePlan>(document, "plan.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(CollectivePlan, IsReadAsItWasWritten) {
  const auto plan = example_plan();
  const auto again = read_plan<CollectivePlan>(parse_json(to_json(write(plan)), "plan.json"), "plan.json");
  EXPECT_TRUE(again == plan);
  EXPECT_TRUE(verify(again).empty());
}

TEST(CollectivePlan, WhatIsWrongIsNamed) {
  const Value good = write(example_plan());
  const auto with = [&](std::string_view key, Value value) {
    Value document = good;
    document.set(key, std::move(value));
    return document;
  };
  EXPECT_NE(reading_error(with("operation", "all_reduces")).find("operation"), std::string::npos);
  EXPECT_NE(reading_error(with("kind", "serve")).find("not \"collective\""), std::string::npos);
  EXPECT_NE(reading_error(with("bytes", 0)).find("bytes"), std::string::npos);
  EXPECT_NE(reading_error(with("program", Value::object({{"1", Value::array()}}))).find("but none for rank 0"),
            std::string::npos);
  Value step = Value::object({{"op", "send"}, {"peer", 1}, {"range", Value::array({0})}});
  Value program = Value::object({{"0", Value::array({step})}, {"1", Value::array()}, {"2", Value::array()}});
  EXPECT_NE(reading_error(with("program", program)).find("program.0[0].range"), std::string::npos)
      << reading_error(with("program", program));

  auto plan = example_plan();
  plan.program.ranks = 2;
  plan.program.steps.pop_back();
  ASSERT_FALSE(verify(plan).empty());
  EXPECT_EQ(verify(plan)[0].place, "ranks");
}

TEST(CollectivePlan, ReferenceIsCurrent) {
  expect_reference_is_current("plan-collective.md", schema<CollectivePlan>().doc());
}

}  // namespace
}  // namespace motley
