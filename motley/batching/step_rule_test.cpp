#include "motley/batching/step_rule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "motley/cost/serve/measured_times.hpp"

namespace motley {
namespace {

// A stage that reads its weights in `weights_s`, up to `ridge` tokens with them at no cost.
StageTime stage(double weights_s, double ridge, double fixed_s = 0) {
  return {.ranks = {{.weights_s = weights_s, .token_s = weights_s / ridge}}, .fixed_s = fixed_s};
}

PipelineTime pipeline_of(const std::vector<StageTime>& stages, double back_s = 0) {
  PipelineTime pipeline{.back_s = back_s};
  for (std::size_t i = 0; i < stages.size(); ++i) pipeline.visits.push_back({.stage = i, .time = stages[i]});
  return pipeline;
}

StepBudget asked(const PipelineTime& pipeline, const StepState& state, SchedulerLimits limits = {.micro_batches = 5}) {
  return timed_steps(std::make_shared<const PipelineTime>(pipeline), limits)(state);
}

TEST(TimedSteps, APromptAloneIsCutForTheEarliestFirstToken) {
  const PipelineTime pipeline = pipeline_of({stage(0.03, 60, 0.002), stage(0.02, 100), stage(0.04, 80, 0.001)}, 0.001);
  for (const std::int64_t prompt : {1, 20, 100, 500, 512}) {
    const StepBudget budget = asked(pipeline, {.prompts = 1, .prompt_tokens = prompt});
    const auto first_token_s = [&](std::int64_t chunk) {
      const double chunks = std::ceil(static_cast<double>(prompt) / static_cast<double>(chunk));
      const StepSpan span = pipeline.span({.tokens = static_cast<double>(chunk)});
      return (chunks - 1) * span.busiest_s + span.round_s;
    };
    double least_s = std::numeric_limits<double>::infinity();
    for (std::int64_t chunk = std::min<std::int64_t>(16, prompt); chunk <= prompt; ++chunk)
      least_s = std::min(least_s, first_token_s(chunk));
    EXPECT_LE(first_token_s(budget.prompt_tokens), 1.02 * least_s) << prompt;
  }
}

TEST(TimedSteps, OnOneStageAPromptAloneGoesWhole) {
  const PipelineTime pipeline = pipeline_of({stage(0.03, 60)}, 0.001);
  EXPECT_EQ(asked(pipeline, {.prompts = 1, .prompt_tokens = 400}).prompt_tokens, 400);
  EXPECT_EQ(asked(pipeline, {.prompts = 1, .prompt_tokens = 600}).prompt_tokens, 300) << "at most 512 in a step";
}

// Eight decodes in a step leave room for 56 tokens that cost nothing.
TEST(TimedSteps, BesideDecodesAChunkFillsTheBusiestStageUpToItsRidge) {
  const PipelineTime pipeline = pipeline_of({stage(0.02, 100), stage(0.03, 64), stage(0.02, 100)});
  const StepBudget budget =
      asked(pipeline, {.decoding = 24, .ready = 8, .under_way = 2, .prompts = 1, .prompt_tokens = 4000},
            {.micro_batches = 3});
  EXPECT_NEAR(static_cast<double>(budget.prompt_tokens), 56, 5);
}

TEST(TimedSteps, AStepWithFewDecodesTakesMoreOfAPrompt) {
  const PipelineTime pipeline = pipeline_of(std::vector<StageTime>(8, stage(0.03, 48, 0.002)));
  const auto chunk = [&](std::int64_t ready) {
    return asked(pipeline, {.decoding = 100, .ready = ready, .under_way = 3, .prompts = 1, .prompt_tokens = 1000},
                 {.micro_batches = 8})
        .prompt_tokens;
  };
  EXPECT_EQ(chunk(0), 48);
  EXPECT_LT(chunk(65), 48);
}

// What a smaller chunk would save of the round trip is lost behind the larger one before it.
TEST(TimedSteps, ChunksBehindOthersAreNotCutSmaller) {
  const PipelineTime pipeline = pipeline_of(std::vector<StageTime>(16, stage(0.03, 48, 0.001)));
  const StepRule rule = timed_steps(std::make_shared<const PipelineTime>(pipeline), {.micro_batches = 17});
  std::vector<std::int64_t> chunks;
  for (std::int64_t left = 500; left > 0; left -= chunks.back())
    chunks.push_back(rule({.under_way = std::ssize(chunks), .prompts = 1, .prompt_tokens = left}).prompt_tokens);
  for (std::size_t i = 1; i + 1 < chunks.size(); ++i) EXPECT_GE(10 * chunks[i], 9 * chunks[i - 1]) << i;
}

TEST(TimedSteps, AsManyMicroBatchesAsBringTokens) {
  const auto micro_batches = [](const std::vector<StageTime>& stages, double back_s, std::int64_t decoding) {
    return asked(pipeline_of(stages, back_s), {.decoding = decoding}, {.micro_batches = 8}).micro_batches;
  };
  const StageTime even = stage(0.03, 20);
  EXPECT_EQ(micro_batches({even, even, even, even}, 0, 100), 4);
  EXPECT_EQ(micro_batches({even, even, even, even}, 0.06, 100), 5);  // the links hold one more
  EXPECT_EQ(micro_batches({even, even, even, even}, 0, 20), 1) << "one step takes them all at no extra cost";
  EXPECT_EQ(micro_batches({even}, 0.001, 20), 1);
  EXPECT_EQ(micro_batches({stage(0.09, 20), stage(0.01, 20)}, 0, 20), 1) << "a second one would wait for the first";
}

// Two steps of 24 decodes and three of 16 leave room for tokens of prompts at no cost: 40 each, or 48. Three take half
// as long again to bring the same decodes, and links that hold a tenth of a step do not make up for that.
TEST(TimedSteps, MoreMicroBatchesAreNotTakenForTokensOfPromptsThatDecodesWaitFor) {
  const PipelineTime pipeline = pipeline_of({stage(0.05, 64), stage(0.05, 64)}, 0.01);
  const StepRule rule = timed_steps(std::make_shared<const PipelineTime>(pipeline), {.micro_batches = 3});
  for (int i = 0; i < 200; ++i) {
    const std::int64_t count =
        rule({.decoding = 47, .ready = 16, .under_way = 1, .prompts = 3, .prompt_tokens = 1300}).micro_batches;
    if (i > 0) {
      EXPECT_EQ(count, 2) << i;
    }
  }
  EXPECT_EQ(asked(pipeline, {.decoding = 64, .prompts = 3, .prompt_tokens = 1300}, {.micro_batches = 3}).micro_batches,
            3)
      << "more sequences get a place";
}

TEST(TimedSteps, FewerMicroBatchesOnlyWhenTheyStayEnough) {
  const PipelineTime pipeline = pipeline_of({stage(0.03, 64), stage(0.03, 64), stage(0.03, 64)});
  const StepRule rule = timed_steps(std::make_shared<const PipelineTime>(pipeline), {.micro_batches = 4});
  const StepState busy{.decoding = 30, .prompts = 4, .prompt_tokens = 2000}, quiet{.decoding = 30};
  EXPECT_EQ(rule(busy).micro_batches, 3);
  int steps = 0;
  while (rule(quiet).micro_batches == 3) ASSERT_LT(++steps, 100);
  EXPECT_GT(steps, 50);
  EXPECT_EQ(rule(busy).micro_batches, 3) << "more at once";
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(rule(i % 40 == 0 ? busy : quiet).micro_batches, 3) << "not enough in a row";
  }
}

// Three or four micro-batches bring about half of what one brings: a few steps cost the tokens of two.
TEST(TimedSteps, FewerMicroBatchesSoonWhereMoreCostTokens) {
  const PipelineTime pipeline = pipeline_of({stage(0.01, 16), stage(0.04, 64), stage(0.01, 16)});
  const StepRule rule = timed_steps(std::make_shared<const PipelineTime>(pipeline), {.micro_batches = 4});
  const StepState busy{.decoding = 30, .prompts = 4, .prompt_tokens = 2000}, quiet{.decoding = 16};
  const std::int64_t most = rule(busy).micro_batches;
  ASSERT_GE(most, 3);
  int steps = 0;
  while (rule(quiet).micro_batches == most) ASSERT_LT(++steps, 100);
  EXPECT_GE(steps, 2);
  EXPECT_LE(steps, 8);
}

TEST(TimedSteps, PromptsThatHoldTheBlocksOthersWaitForGetMore) {
  const PipelineTime pipeline = pipeline_of({stage(0.02, 64, 0.01), stage(0.02, 64, 0.01)});
  StepState state{.decoding = 60, .prompts = 21, .prompt_tokens = 2'000};
  const std::int64_t before = asked(pipeline, state, {.micro_batches = 2}).prompt_tokens;
  state.stalled = 100;
  EXPECT_GT(asked(pipeline, state, {.micro_batches = 2}).prompt_tokens, before);
}

TEST(TimedSteps, WithoutPromptsThereAreNoTokensForThem) {
  EXPECT_EQ(asked(pipeline_of({stage(0.02, 64)}), {.decoding = 3}).prompt_tokens, 0);
}

// Computing proves four times slower than believed on the busiest stage: the tokens that ride along at no cost are a
// quarter as many, and so are those of the steps. The rule stays the same.
TEST(TimedSteps, ChunksFollowMeasuredTimes) {
  MeasuredPipeline measured(pipeline_of({stage(0.02, 256), stage(0.03, 256), stage(0.02, 256)}));
  const StepRule rule = timed_steps(measured.times(), {.micro_batches = 3});
  const StepState state{.decoding = 24, .prompts = 1, .prompt_tokens = 4000};
  const std::int64_t before = rule(state).prompt_tokens + 8;
  EXPECT_NEAR(static_cast<double>(before), 256, 20);
  const StageTime real = stage(0.03, 64);
  for (int i = 0; i < 40; ++i)
    for (const double tokens : {8.0, 32.0, 128.0, 256.0})
      measured.add_stage(1, {.tokens = tokens}, real.seconds({.tokens = tokens}));
  EXPECT_NEAR(static_cast<double>(rule(state).prompt_tokens + 8), static_cast<double>(before) / 4, 8);
}

// Four times slower as a whole, a stage that was not the busiest decides.
TEST(TimedSteps, MicroBatchesFollowMeasuredTimes) {
  MeasuredPipeline measured(pipeline_of({stage(0.03, 20), stage(0.03, 20), stage(0.03, 20), stage(0.03, 20)}));
  const StepRule rule = timed_steps(measured.times(), {.micro_batches = 8});
  EXPECT_EQ(rule({.decoding = 100}).micro_batches, 4);
  for (int i = 0; i < 400; ++i) measured.add_stage(2, {.tokens = 25}, 4 * stage(0.03, 20).seconds({.tokens = 25}));
  std::int64_t fewest = 4;
  for (int i = 0; i < 100; ++i) fewest = std::min(fewest, rule({.decoding = 100}).micro_batches);
  EXPECT_LE(fewest, 2);
}

TEST(FixedSteps, TakeWhatTheLimitsAllow) {
  const StepBudget budget = fixed_steps({}, {.max_tokens = 96, .micro_batches = 3})({.prompts = 1, .prompt_tokens = 4});
  EXPECT_EQ(budget.micro_batches, 3);
  EXPECT_EQ(budget.prompt_tokens, 96);
}

}  // namespace
}  // namespace motley
