#include "motley/cost/serve/measured_times.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace motley {
namespace {

// Reads its weights in 20 ms, 40 tokens with them at no cost; 1 ms for every step.
StageTime believed_stage() { return {.ranks = {{.weights_s = 0.02, .token_s = 0.0005}}, .fixed_s = 0.001}; }

StepLoad load_of(double tokens) { return {.tokens = tokens}; }

// `rounds` steps of each size, as `real` takes them.
void measure(MeasuredStage& stage, const StageTime& real, const std::vector<double>& sizes, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (const double tokens : sizes) stage.add(load_of(tokens), real.seconds(load_of(tokens)));
}

TEST(MeasuredStage, NothingMeasuredIsAsBelieved) {
  const MeasuredStage stage(believed_stage());
  for (const double tokens : {1.0, 40.0, 400.0})
    EXPECT_EQ(stage.corrected().seconds(load_of(tokens)), believed_stage().seconds(load_of(tokens)));
}

TEST(MeasuredStage, WhatIsAsBelievedStaysSo) {
  MeasuredStage stage(believed_stage());
  measure(stage, believed_stage(), {1, 8, 64, 256}, 20);
  EXPECT_NEAR(stage.parts().step_s, 0.001, 1e-9);
  EXPECT_NEAR(stage.parts().weights, 1, 1e-9);
  EXPECT_NEAR(stage.parts().tokens, 1, 1e-9);
}

// The believed price weighs as much as some steps.
TEST(MeasuredStage, ASingleStepMovesThePriceAPart) {
  MeasuredStage stage(believed_stage());
  stage.add(load_of(8), 4 * believed_stage().seconds(load_of(8)));
  EXPECT_GT(stage.corrected().seconds(load_of(8)), 1.3 * believed_stage().seconds(load_of(8)));
  EXPECT_LT(stage.corrected().seconds(load_of(8)), 3.7 * believed_stage().seconds(load_of(8)));
  EXPECT_GT(stage.corrected().seconds(load_of(400)), 1.2 * believed_stage().seconds(load_of(400)));
  EXPECT_LT(stage.corrected().seconds(load_of(400)), 2 * believed_stage().seconds(load_of(400)));
}

TEST(MeasuredStage, SlowerAsAWholeIsSoForSizesNotSeen) {
  MeasuredStage stage(believed_stage());
  for (int i = 0; i < 200; ++i) stage.add(load_of(8), 4 * believed_stage().seconds(load_of(8)));
  EXPECT_NEAR(stage.corrected().seconds(load_of(8)), 4 * 0.021, 0.001);
  const double factor = stage.corrected().seconds(load_of(400)) / believed_stage().seconds(load_of(400));
  EXPECT_GT(factor, 2);
  EXPECT_LT(factor, 4.1);
}

// Computes four times slower and reads as believed: 10 tokens are at no cost instead of 40.
TEST(MeasuredStage, SlowComputingMovesTheRidge) {
  MeasuredStage stage(believed_stage());
  StageTime real = believed_stage();
  real.ranks[0].token_s *= 4;
  measure(stage, real, {1, 4, 16, 64, 256}, 20);
  EXPECT_NEAR(stage.corrected().tokens_at_no_cost().value(), 10, 0.5);
  for (const double tokens : {1.0, 10.0, 100.0, 500.0})
    EXPECT_NEAR(stage.corrected().seconds(load_of(tokens)) / real.seconds(load_of(tokens)), 1, 0.03) << tokens;
}

TEST(MeasuredStage, SlowReadingMovesTheRidge) {
  MeasuredStage stage(believed_stage());
  StageTime real = believed_stage();
  real.ranks[0].weights_s *= 3;
  measure(stage, real, {1, 4, 16, 64, 256, 512}, 20);
  EXPECT_NEAR(stage.corrected().tokens_at_no_cost().value(), 120, 8);
}

TEST(MeasuredStage, EveryStepMayCostMoreThanBelieved) {
  MeasuredStage stage(believed_stage());
  StageTime real = believed_stage();
  real.fixed_s = 0.05;
  measure(stage, real, {1, 4, 16, 64, 256, 512}, 20);
  for (const double tokens : {1.0, 64.0, 512.0})
    EXPECT_NEAR(stage.corrected().seconds(load_of(tokens)) / real.seconds(load_of(tokens)), 1, 0.03) << tokens;
}

TEST(MeasuredStage, OutliersDoNotCount) {
  MeasuredStage stage(believed_stage());
  for (int i = 0; i < 64; ++i) {
    const bool stalls = i % 16 == 3;
    for (const double tokens : {4.0, 128.0})
      stage.add(load_of(tokens), stalls ? 10 : believed_stage().seconds(load_of(tokens)));
  }
  EXPECT_NEAR(stage.corrected().seconds(load_of(4)), believed_stage().seconds(load_of(4)), 1e-9);
  EXPECT_NEAR(stage.corrected().seconds(load_of(128)), believed_stage().seconds(load_of(128)), 1e-9);
}

TEST(MeasuredStage, NoiseOfAThirdLeavesAFewPercent) {
  MeasuredStage stage(believed_stage());
  StageTime real = believed_stage();
  real.ranks[0].token_s *= 3;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.67, 1.33);
  for (int i = 0; i < 300; ++i)
    for (const double tokens : {2.0, 12.0, 90.0})
      stage.add(load_of(tokens), noise(random) * real.seconds(load_of(tokens)));
  for (const double tokens : {2.0, 12.0, 90.0, 500.0})
    EXPECT_NEAR(stage.corrected().seconds(load_of(tokens)) / real.seconds(load_of(tokens)), 1, 0.15) << tokens;
}

TEST(MeasuredStage, AChangeIsFollowedAndOldSizesAreForgotten) {
  MeasuredStage stage(believed_stage());
  measure(stage, believed_stage(), {4, 256}, 40);
  for (int i = 0; i < 40; ++i) stage.add(load_of(4), 0.063);
  EXPECT_NEAR(stage.corrected().seconds(load_of(4)), 0.063, 0.003);
  EXPECT_LT(stage.corrected().seconds(load_of(256)), 1.5 * believed_stage().seconds(load_of(256)));
  for (int i = 0; i < 5000; ++i) stage.add(load_of(4), 0.063);
  EXPECT_GT(stage.corrected().seconds(load_of(256)), 1.5 * believed_stage().seconds(load_of(256)));
}

TEST(MeasuredStage, AMeasuredRateIsCorrectedToo) {
  MeasuredStage stage({.measured_tokens_per_s = 1000});
  for (int i = 0; i < 40; ++i)
    for (const double tokens : {4.0, 100.0}) stage.add(load_of(tokens), 0.01 + tokens / 500);
  EXPECT_NEAR(stage.corrected().seconds(load_of(50)), 0.11, 0.005);
}

TEST(MeasuredStage, NothingOddBecomesOfOddTimes) {
  MeasuredStage stage(believed_stage());
  for (const double seconds : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    stage.add(load_of(8), seconds);
    stage.add(load_of(0), seconds);
  }
  const double corrected_s = stage.corrected().seconds(load_of(8));
  EXPECT_TRUE(std::isfinite(corrected_s) && corrected_s > 0);
}

// ---- pipelines ----

PipelineTime two_stages() {
  const HopSpeed link{0.001, 1e6};
  return {.visits = {{.stage = 0, .time = believed_stage()}, {.stage = 1, .time = believed_stage()}},
          .crossings = {{.time = {.small = link, .large = link, .token_bytes = 100}}},
          .back_s = 0.002};
}

TEST(MeasuredPipeline, AStageThatWasMeasuredIsCorrectedWhereTheRuleReads) {
  MeasuredPipeline pipeline(two_stages());
  const std::shared_ptr<const PipelineTime> times = pipeline.times();
  for (int i = 0; i < 400; ++i) pipeline.add_stage(1, load_of(100), 4 * believed_stage().seconds(load_of(100)));
  EXPECT_EQ(times->visits[0].time.seconds(load_of(100)), believed_stage().seconds(load_of(100)));
  EXPECT_NEAR(times->span(load_of(100)).busiest_s, 4 * believed_stage().seconds(load_of(100)), 0.001);
  EXPECT_EQ(pipeline.believed().span(load_of(100)).busiest_s, believed_stage().seconds(load_of(100)));
  EXPECT_EQ(pipeline.steps(0), 0);
  EXPECT_EQ(pipeline.steps(1), 400);
}

// 8 ms for a step and 0.2 ms for a token, where 3 ms and 0.1 ms were believed.
TEST(MeasuredPipeline, TheWayIsCorrectedToo) {
  MeasuredPipeline pipeline(two_stages());
  for (int i = 0; i < 200; ++i)
    for (const double tokens : {1.0, 10.0, 100.0}) pipeline.add_way(load_of(tokens), 0.008 + 0.0002 * tokens);
  const double stages_s = 2 * believed_stage().seconds(load_of(50));
  EXPECT_NEAR(pipeline.times()->span(load_of(50)).round_s - stages_s, 0.018, 0.0005);
  EXPECT_NEAR(pipeline.times()->crossings[0].time.occupancy_s(50, 5000), 0.01, 0.0005);
  EXPECT_EQ(pipeline.alone(), 600);
}

}  // namespace
}  // namespace motley
