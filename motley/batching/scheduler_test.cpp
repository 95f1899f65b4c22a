#include "motley/batching/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <random>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using Part = ScheduledSequence;

std::vector<std::uint64_t> ids(const ScheduledStep& step) {
  std::vector<std::uint64_t> out;
  for (const Part& part : step.sequences) out.push_back(part.id);
  return out;
}

TEST(Scheduler, APromptThenItsDecodes) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4});
  EXPECT_EQ(scheduler.add(7, 6, 3), Admission::accepted);
  const auto prompt = scheduler.next();
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->sequences, (std::vector<Part>{{7, 0, 6, {0, 1}, true}}));
  EXPECT_FALSE(scheduler.next());  // one micro-batch, under way
  scheduler.complete(prompt->id, {});
  const auto first = scheduler.next();
  EXPECT_EQ(first->sequences, (std::vector<Part>{{7, 6, 1, {}, true, 0, 2}}));
  scheduler.complete(first->id, {});
  const auto second = scheduler.next();
  EXPECT_EQ(second->sequences, (std::vector<Part>{{7, 7, 1, {}, true, 0, 2}}));
  scheduler.complete(second->id, {7});
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.counts().free_blocks, 8);
}

TEST(Scheduler, DecodesComeBeforePromptChunksUnderOneBudget) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .max_tokens = 8});
  scheduler.add(1, 3, 9);
  scheduler.complete(scheduler.next()->id, {});
  scheduler.add(2, 12, 2);
  scheduler.add(3, 6, 2);
  const auto second = scheduler.next();
  EXPECT_EQ(ids(*second), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(second->sequences[0].count, 1);
  EXPECT_EQ(second->sequences[1].count, 7);
  EXPECT_FALSE(second->sequences[1].samples);
  EXPECT_EQ(second->sequences[1].blocks.size(), 2u);  // covers [0, 7), though blocks for all of it are set aside
  scheduler.complete(second->id, {});
  const auto third = scheduler.next();
  EXPECT_EQ(ids(*third), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(third->sequences[1].position, 7);
  EXPECT_EQ(third->sequences[1].count, 5);
  EXPECT_TRUE(third->sequences[1].samples);
  EXPECT_EQ(third->sequences[2].count, 2);
}

// Two micro-batches may run four sequences, and a rule that keeps one of them under way fills its steps with decodes.
TEST(Scheduler, DecodesLeaveAPlaceForAPrompt) {
  const SchedulerLimits limits{.blocks = 64, .max_sequences = 2, .micro_batches = 2};
  Scheduler scheduler(limits, [](const StepState&) { return StepBudget{.micro_batches = 1, .prompt_tokens = 512}; });
  scheduler.add(1, 4, 9);
  scheduler.add(2, 4, 9);
  scheduler.complete(scheduler.next()->id, {});
  const auto full = scheduler.next();
  EXPECT_EQ(ids(*full), (std::vector<std::uint64_t>{1, 2}));  // no request waits: decodes take all places
  scheduler.complete(full->id, {});
  scheduler.add(3, 4, 9);
  const auto shared = scheduler.next();
  EXPECT_EQ(ids(*shared), (std::vector<std::uint64_t>{1, 3}));
  scheduler.complete(shared->id, {});
  EXPECT_EQ(scheduler.next()->sequences.front().id, 2);  // who made room goes first
}

TEST(Scheduler, ChunksOfAPromptFollowInConsecutiveSteps) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 4, .micro_batches = 4});
  scheduler.add(1, 10, 2);
  const auto first = scheduler.next(), second = scheduler.next(), third = scheduler.next();
  EXPECT_EQ(first->sequences, (std::vector<Part>{{1, 0, 4, {0}, false}}));
  EXPECT_EQ(second->sequences, (std::vector<Part>{{1, 4, 4, {1}, false, 0, 1}}));
  EXPECT_EQ(third->sequences, (std::vector<Part>{{1, 8, 2, {2}, true, 0, 2}}));
  EXPECT_FALSE(scheduler.next());  // the next token is not known yet
  scheduler.complete(first->id, {});
  scheduler.complete(second->id, {});
  EXPECT_FALSE(scheduler.next());
  scheduler.complete(third->id, {});
  EXPECT_EQ(scheduler.next()->sequences, (std::vector<Part>{{1, 10, 1, {}, true, 0, 3}}));
}

TEST(Scheduler, BlocksOfACancelledPromptAreFreeWhenItsLastChunkIsDone) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 4, .micro_batches = 2});
  scheduler.add(1, 20, 2);
  const auto first = scheduler.next(), second = scheduler.next();
  scheduler.cancel(1);
  scheduler.complete(first->id, {});
  EXPECT_EQ(scheduler.counts().free_blocks, 2);
  EXPECT_FALSE(scheduler.next());  // no more chunks of it
  scheduler.complete(second->id, {});
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.counts().free_blocks, 8);
}

// The caller may complete steps in any order.
TEST(Scheduler, ASequenceMayEndBeforeAnEarlierStepIsDone) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 6, .micro_batches = 2});
  scheduler.add(1, 8, 2);
  const auto first = scheduler.next(), second = scheduler.next();
  scheduler.complete(second->id, {1});
  EXPECT_EQ(scheduler.counts().running, 1);
  scheduler.complete(first->id, {});
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.counts().free_blocks, 8);
}

// Eight sequences decode in the one micro-batch that suffices them; the ninth is worth another one.
TEST(Scheduler, ARequestIsAdmittedThoughTheMicroBatchesUnderWayAreFull) {
  const SchedulerLimits limits{.blocks = 1000, .max_sequences = 8, .micro_batches = 3};
  PipelineTime pipeline;
  for (std::size_t stage = 0; stage < 3; ++stage)
    pipeline.visits.push_back({.stage = stage, .time = {.ranks = {{.weights_s = 0.02, .token_s = 0.0002}}}});
  Scheduler scheduler(limits, timed_steps(std::make_shared<const PipelineTime>(pipeline), limits));
  for (std::uint64_t id = 1; id <= 8; ++id) scheduler.add(id, 4, 1000);
  std::vector<std::uint64_t> under_way;
  const auto turn = [&] {
    while (const auto step = scheduler.next()) under_way.push_back(step->id);
    scheduler.complete(under_way.front(), {});
    under_way.erase(under_way.begin());
  };
  for (int i = 0; i < 200; ++i) turn();
  EXPECT_EQ(scheduler.counts().running, 8);
  EXPECT_EQ(scheduler.counts().steps_under_way, 0);  // one at a time
  scheduler.add(9, 4, 1000);
  for (int i = 0; i < 5; ++i) turn();
  EXPECT_EQ(scheduler.counts().running, 9);
}

TEST(Scheduler, RefusesWhatNeverFitsAndWhatTheQueueDoesNotHold) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 4, .max_queue = 2});
  EXPECT_EQ(scheduler.add(1, 10, 7), Admission::never_fits);
  EXPECT_EQ(scheduler.add(1, 17, 1), Admission::never_fits);
  EXPECT_EQ(scheduler.add(1, 1, std::numeric_limits<std::int64_t>::max()), Admission::never_fits);
  EXPECT_EQ(scheduler.add(1, 10, 6), Admission::accepted);
  EXPECT_EQ(scheduler.add(2, 1, 1), Admission::accepted);
  EXPECT_EQ(scheduler.add(3, 1, 1), Admission::queue_full);
  scheduler.next();  // 1 is admitted
  EXPECT_EQ(scheduler.add(3, 1, 1), Admission::accepted);
}

TEST(Scheduler, AdmitsOnlyWithBlocksForThePromptAndOneToken) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 4, .micro_batches = 2});
  scheduler.add(1, 8, 4);  // 8 + 1 tokens: three blocks
  scheduler.add(2, 4, 4);  // 4 + 1 tokens: two blocks
  scheduler.add(3, 1, 1);  // would fit, but waits for its turn
  const auto first = scheduler.next();
  EXPECT_EQ(ids(*first), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(scheduler.counts().free_blocks, 1);
  EXPECT_FALSE(scheduler.next());
  scheduler.complete(first->id, {1});
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{2, 3}));
}

TEST(Scheduler, PreemptsTheLastInLineAndComputesItAnew) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 2});
  scheduler.add(1, 3, 5);  // two blocks
  scheduler.add(2, 3, 5);
  const auto prompts = scheduler.next();
  EXPECT_EQ(ids(*prompts), (std::vector<std::uint64_t>{1, 2}));
  scheduler.complete(prompts->id, {});
  const auto decodes = scheduler.next();  // the fourth tokens fill the second blocks
  EXPECT_EQ(ids(*decodes), (std::vector<std::uint64_t>{1, 2}));
  scheduler.complete(decodes->id, {});

  const auto tight = scheduler.next();  // both need a third block
  EXPECT_EQ(ids(*tight), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(scheduler.counts().preemptions, 1);
  EXPECT_EQ(scheduler.counts().waiting, 1);
  EXPECT_EQ(scheduler.counts().free_blocks, 1);
  scheduler.complete(tight->id, {1});
  const auto again = scheduler.next();  // the prompt and the two tokens generated so far
  ASSERT_EQ(ids(*again), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(again->sequences[0].position, 0);
  EXPECT_EQ(again->sequences[0].count, 5);
  EXPECT_TRUE(again->sequences[0].samples);
}

TEST(Scheduler, ASequenceWaitsWhereOnlyThoseUnderWayCouldGiveItABlock) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 2, .max_tokens = 3, .micro_batches = 2});
  scheduler.add(1, 3, 5);
  scheduler.add(2, 3, 2);
  const auto first = scheduler.next();
  const auto second = scheduler.next();
  EXPECT_EQ(ids(*second), (std::vector<std::uint64_t>{2}));
  scheduler.complete(first->id, {});
  const auto third = scheduler.next();
  scheduler.complete(third->id, {});
  EXPECT_EQ(ids(*third), (std::vector<std::uint64_t>{1}));
  EXPECT_FALSE(scheduler.next());  // 1 needs a third block, and 2 is under way
  EXPECT_EQ(scheduler.counts().preemptions, 0);
  scheduler.complete(second->id, {2});
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{1}));
}

TEST(Scheduler, MicroBatchesShareTheSequences) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 16, .micro_batches = 3});
  for (std::uint64_t id = 1; id <= 4; ++id) scheduler.add(id, 2, 10);
  scheduler.complete(scheduler.next()->id, {});
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{3}));
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{4}));
  EXPECT_FALSE(scheduler.next());
}

TEST(Scheduler, WhoWasLeftOutGoesFirst) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 16, .micro_batches = 2});
  for (std::uint64_t id = 1; id <= 4; ++id) scheduler.add(id, 2, 10);
  const auto prompts = scheduler.next();
  scheduler.add(5, 2, 10);
  scheduler.next();  // a slow one
  scheduler.complete(prompts->id, {});
  const auto first = scheduler.next();
  EXPECT_EQ(ids(*first), (std::vector<std::uint64_t>{1, 2, 3}));
  scheduler.complete(first->id, {});
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{4, 1, 2}));
}

TEST(Scheduler, PriorityLeadsTheLineByABoundedNumberOfSteps) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_sequences = 1});
  scheduler.add(1, 1, 2);
  scheduler.add(2, 1, 2, 5);
  scheduler.add(3, 1, 2, 9);
  for (const std::uint64_t expected : {3, 2, 1}) {
    const auto step = scheduler.next();
    EXPECT_EQ(ids(*step), std::vector<std::uint64_t>{expected});
    scheduler.complete(step->id, {expected});
  }
  // An urgent request at every step does not keep an old one waiting for ever.
  scheduler.add(10, 1, 1);
  std::uint64_t urgent = 100;
  for (std::int64_t steps = 0;; ++steps) {
    ASSERT_LE(steps, 2 * Scheduler::steps_per_priority + 1);
    scheduler.add(++urgent, 1, 1, 2);
    const auto step = scheduler.next();
    scheduler.complete(step->id, {step->sequences[0].id});
    if (step->sequences[0].id == 10) break;
  }
}

TEST(Scheduler, NoPriorityIsTooLarge) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .max_sequences = 1});
  scheduler.add(1, 3, 2, -most);
  scheduler.add(2, 3, 2, 0);
  scheduler.add(3, 3, 2, most);
  for (const std::uint64_t expected : {3, 2, 1}) {
    const auto step = scheduler.next();
    ASSERT_TRUE(step);
    EXPECT_EQ(ids(*step), std::vector<std::uint64_t>{expected});
    scheduler.complete(step->id, {expected});
  }
}

TEST(Scheduler, CancelFreesNowOrWhenTheStepCompletes) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 4, .max_sequences = 2});
  for (std::uint64_t id = 1; id <= 3; ++id) scheduler.add(id, 3, 4);
  const auto step = scheduler.next();
  EXPECT_EQ(ids(*step), (std::vector<std::uint64_t>{1, 2}));
  scheduler.cancel(3);  // waits
  EXPECT_EQ(scheduler.counts().waiting, 0);
  scheduler.cancel(1);  // under way
  EXPECT_EQ(scheduler.counts().free_blocks, 2);
  scheduler.complete(step->id, {});
  EXPECT_EQ(scheduler.counts().free_blocks, 3);
  scheduler.cancel(2);  // between steps
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.counts().free_blocks, 4);
  scheduler.cancel(99);
}

// ---- slots ----

TEST(SchedulerSlots, ARunningSequenceHasOneUntilItEnds) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .max_sequences = 8, .slots = 2});
  for (const std::uint64_t id : {1, 2, 3}) scheduler.add(id, 4, 9);
  const auto first = scheduler.next();
  EXPECT_EQ(ids(*first), (std::vector<std::uint64_t>{1, 2})) << "no slot for the third";
  EXPECT_EQ(first->sequences[0].slot, 0);
  EXPECT_EQ(first->sequences[1].slot, 1);
  scheduler.complete(first->id, {1});
  const auto second = scheduler.next();
  EXPECT_EQ(ids(*second), (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(second->sequences[0].slot, 1);
  EXPECT_EQ(second->sequences[1].slot, 0);
}

TEST(SchedulerSlots, APreemptedSequenceGivesItBack) {
  Scheduler scheduler({.blocks = 3, .block_tokens = 4, .slots = 2});
  scheduler.add(1, 3, 8);
  scheduler.add(2, 4, 8);
  scheduler.complete(scheduler.next()->id, {});
  scheduler.complete(scheduler.next()->id, {});  // the first one's fifth token takes the block of the other
  const auto alone = scheduler.next();
  EXPECT_EQ(ids(*alone), std::vector<std::uint64_t>{1});
  EXPECT_EQ(alone->sequences[0].slot, 0);
  scheduler.complete(alone->id, {1});
  const auto again = scheduler.next();
  ASSERT_EQ(ids(*again), std::vector<std::uint64_t>{2});
  EXPECT_EQ(again->sequences[0].position, 0);
  EXPECT_EQ(again->sequences[0].slot, 0);
}

TEST(SchedulerSlots, AnAdoptedSequenceStaysInItsOwn) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .slots = 3});
  EXPECT_EQ(scheduler.adopt(1, 4, 9, {.tokens = 3, .blocks = {0}, .slot = 3}), Admission::never_fits);
  EXPECT_EQ(scheduler.adopt(1, 4, 9, {.tokens = 3, .blocks = {0}, .slot = 1}), Admission::accepted);
  EXPECT_EQ(scheduler.adopt(2, 4, 9, {.tokens = 3, .blocks = {1}}), Admission::accepted) << "it had none";
  scheduler.add(3, 1, 1);
  const auto step = scheduler.next();
  ASSERT_EQ(ids(*step), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(step->sequences[0].slot, 1);
  EXPECT_EQ(step->sequences[1].slot, 0);
  EXPECT_EQ(step->sequences[2].slot, 2);
  EXPECT_EQ(scheduler.cached().at(1).slot, 1);
}

TEST(SchedulerSlots, TheFirstOfAnotherLaneHasWaitedForLonger) {
  const SchedulerLimits limits{.blocks = 64, .block_tokens = 4, .max_sequences = 1, .slots = 1};
  const auto lane = [&] { return Lane{fixed_steps({}, limits), 1}; };
  Scheduler scheduler(limits, {lane(), lane()});
  const auto add = [&](std::uint64_t id, std::size_t to) { scheduler.add(id, 4, 9, 0, 0, QueueLimit::applies, to); };
  add(1, 0);
  const auto first = scheduler.next();
  add(2, 1);
  add(3, 0);
  scheduler.complete(first->id, {1});
  EXPECT_EQ(ids(*scheduler.next()), std::vector<std::uint64_t>{2});
}

// ---- sequences of another scheduler ----

TEST(Scheduler, TellsWhatIsThereIfTheStepsUnderWayAreLost) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 4, .micro_batches = 2});
  scheduler.add(7, 6, 3);
  EXPECT_TRUE(scheduler.cached().empty());
  const auto first = scheduler.next();
  EXPECT_TRUE(scheduler.cached().empty());
  const auto second = scheduler.next();
  scheduler.complete(first->id, {});
  const std::vector<std::int32_t> blocks{0, 1};
  EXPECT_EQ(
      scheduler.cached(),
      (std::map<std::uint64_t, CachedTokens>{{7, {.tokens = 4, .blocks = blocks, .last_step = 2, .reached = 6}}}));
  scheduler.complete(second->id, {});
  EXPECT_EQ(
      scheduler.cached(),
      (std::map<std::uint64_t, CachedTokens>{{7, {.tokens = 6, .blocks = blocks, .last_step = 2, .reached = 6}}}));
}

TEST(Scheduler, AnAdoptedSequenceGoesOnInItsBlocks) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4});
  EXPECT_EQ(scheduler.adopt(7, 7, 2, {.tokens = 6, .blocks = {5, 2}}), Admission::accepted);
  EXPECT_EQ(scheduler.counts().running, 1);
  const auto step = scheduler.next();
  EXPECT_EQ(step->sequences, (std::vector<Part>{{7, 6, 1, {5, 2}, true}}));
  scheduler.complete(step->id, {});
  const auto next = scheduler.next();
  EXPECT_EQ(next->sequences, (std::vector<Part>{{7, 7, 1, {}, true, 0, 2}}));
  scheduler.complete(next->id, {7});
  EXPECT_EQ(scheduler.counts().free_blocks, 8);
}

TEST(Scheduler, AdoptedSequencesGoOnInTheOrderOfTheirLastSteps) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .micro_batches = 3});
  scheduler.adopt(1, 4, 5, {.tokens = 3, .blocks = {0}, .last_step = 70});
  scheduler.adopt(2, 4, 5, {.tokens = 3, .blocks = {1}, .last_step = 68});
  scheduler.adopt(3, 4, 5, {.tokens = 3, .blocks = {2}, .last_step = 69});
  for (const std::uint64_t id : {2, 3, 1, 2}) {
    const auto step = scheduler.next();
    ASSERT_EQ(step->sequences.size(), 1u);
    EXPECT_EQ(step->sequences[0].id, id);
    if (id == 1) scheduler.complete(71, {});
  }
}

TEST(Scheduler, WhatTheFirstStagesLackIsComputedThereAlone) {
  Scheduler scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 5, .micro_batches = 3});
  scheduler.adopt(7, 9, 2, {.tokens = 8, .blocks = {5, 2}, .lacking_stages = 2});
  const auto first = scheduler.next(), second = scheduler.next();
  EXPECT_EQ(first->sequences, (std::vector<Part>{{7, 0, 5, {5, 2}, false, 2}}));
  EXPECT_EQ(second->sequences, (std::vector<Part>{{7, 5, 3, {}, false, 2, 2}}));
  EXPECT_FALSE(scheduler.next()) << "the ninth token has no block yet";
  scheduler.complete(first->id, {});
  scheduler.complete(second->id, {});
  EXPECT_EQ(scheduler.next()->sequences, (std::vector<Part>{{7, 8, 1, {5, 2, 0}, true}}));
}

TEST(Scheduler, APreemptedSequenceIsComputedByAllStages) {
  Scheduler scheduler({.blocks = 5, .block_tokens = 4, .max_sequences = 4});
  scheduler.adopt(1, 8, 9, {.tokens = 7, .blocks = {0, 1}});
  scheduler.adopt(2, 5, 9, {.tokens = 4, .blocks = {3, 4}, .lacking_stages = 1});
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{1, 2}));
  scheduler.complete(1, {});
  for (std::uint64_t step = 2; scheduler.counts().preemptions == 0; ++step) {
    ASSERT_TRUE(scheduler.next());
    scheduler.complete(step, {});
    ASSERT_LT(step, 20u);
  }
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto next = scheduler.next();
    ASSERT_TRUE(next);
    if (next->sequences.back().id == 2) {
      EXPECT_EQ(next->sequences.back().stages, 0);
      EXPECT_EQ(next->sequences.back().position, 0);
      return;
    }
    scheduler.complete(next->id,
                       next->sequences[0].position == 15 ? std::set<std::uint64_t>{1} : std::set<std::uint64_t>());
  }
  FAIL() << "it does not come back";
}

TEST(Scheduler, AdoptsNothingWithoutItsBlocksAndOneFreeForOthers) {
  Scheduler scheduler({.blocks = 3, .block_tokens = 4});
  EXPECT_EQ(scheduler.adopt(1, 4, 9, {.tokens = 3, .blocks = {0}}), Admission::never_fits);  // 13 tokens
  EXPECT_EQ(scheduler.adopt(1, 4, 2, {.tokens = 3, .blocks = {3}}), Admission::never_fits);
  EXPECT_EQ(scheduler.adopt(1, 4, 2, {.tokens = 3, .blocks = {0, 1, 2}}), Admission::never_fits);
  EXPECT_EQ(scheduler.adopt(1, 4, 2, {.tokens = 3, .blocks = {0, 1}}), Admission::accepted);
  EXPECT_EQ(scheduler.add(2, 1, 1), Admission::accepted);
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{1, 2}));
}

TEST(Scheduler, RefusesACallerThatMiscounts) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 4});
  scheduler.add(1, 3, 1);
  EXPECT_THROW(scheduler.add(1, 3, 1), Error);
  EXPECT_THROW(scheduler.complete(99, {}), Error);
  const auto step = scheduler.next();
  EXPECT_THROW(scheduler.complete(step->id, {}), Error);  // it has all its tokens, yet is not finished
}

// ---- lanes ----

Scheduler two_lanes(const SchedulerLimits& limits) {
  const Lane lane{fixed_steps({}, limits), limits.micro_batches};
  return Scheduler(limits, {lane, lane});
}

Admission add(Scheduler& scheduler, std::uint64_t id, std::int64_t prompt_tokens, std::size_t lane) {
  return scheduler.add(id, prompt_tokens, 2, 0, 0, QueueLimit::applies, lane);
}

TEST(SchedulerLanes, EachHasStepsOfItsOwn) {
  Scheduler scheduler = two_lanes({.blocks = 8, .block_tokens = 4, .max_tokens = 4});
  add(scheduler, 1, 9, 0);
  add(scheduler, 2, 3, 1);
  add(scheduler, 3, 2, 0);
  const auto first = scheduler.next(), second = scheduler.next();
  EXPECT_FALSE(scheduler.next());
  EXPECT_EQ(first->lane, 0u);
  EXPECT_EQ(ids(*first), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(second->lane, 1u);
  EXPECT_EQ(ids(*second), (std::vector<std::uint64_t>{2}));
  EXPECT_EQ(scheduler.counts().steps_under_way, 2);
  scheduler.complete(second->id, {2});
  EXPECT_FALSE(scheduler.next()) << "lane 0 has its step under way";
  scheduler.complete(first->id, {});
  EXPECT_EQ(scheduler.next()->sequences.front().position, 4);
}

// Five blocks: the first needs four, two are held.
TEST(SchedulerLanes, BlocksThatAnEarlierOneNeedsAreKeptForIt) {
  Scheduler scheduler = two_lanes({.blocks = 5, .block_tokens = 4, .micro_batches = 2});
  add(scheduler, 1, 7, 1);
  const auto held = scheduler.next();
  add(scheduler, 2, 12, 0);
  add(scheduler, 3, 3, 1);
  EXPECT_FALSE(scheduler.next()) << "the third request came later";
  scheduler.cancel(2);
  EXPECT_EQ(ids(*scheduler.next()), (std::vector<std::uint64_t>{3}));
  scheduler.complete(held->id, {1});
}

// The one place of lane 0 is taken: its next request does not keep blocks from lane 1.
TEST(SchedulerLanes, ALaneWithoutAPlaceKeepsNoBlocks) {
  Scheduler scheduler = two_lanes({.blocks = 6, .block_tokens = 4, .max_sequences = 1});
  add(scheduler, 1, 3, 0);
  ASSERT_TRUE(scheduler.next());
  add(scheduler, 2, 17, 0);
  add(scheduler, 3, 3, 1);
  EXPECT_EQ(ids(scheduler.next().value()), (std::vector<std::uint64_t>{3}));
}

TEST(SchedulerLanes, TheLastInTheLineOfAnyLaneGivesItsBlocks) {
  Scheduler scheduler = two_lanes({.blocks = 2, .block_tokens = 4});
  for (const std::uint64_t id : {1, 2}) scheduler.add(id, 3, 4, 0, 0, QueueLimit::applies, id - 1);
  for (int round = 0; round < 2; ++round) {
    const auto first = scheduler.next(), second = scheduler.next();
    scheduler.complete(first->id, {});
    scheduler.complete(second->id, {});
  }
  const auto step = scheduler.next();
  EXPECT_EQ(step->sequences, (std::vector<Part>{{1, 4, 1, {1}, true, 0, 1}}));
  EXPECT_EQ(scheduler.counts().preemptions, 1);
  EXPECT_FALSE(scheduler.next());
}

// The second sequence cannot have its block while the first has a step under way, and can when that is done: although
// no block has become free.
TEST(SchedulerLanes, WhatWaitsForBlocksGoesOnWhenAnotherCanBePreempted) {
  Scheduler scheduler = two_lanes({.blocks = 2, .block_tokens = 4});
  for (const std::uint64_t id : {1, 2}) scheduler.add(id, 3, 4, 0, 0, QueueLimit::applies, 2 - id);
  auto first = scheduler.next(), second = scheduler.next();
  ASSERT_EQ(first->lane, 0u);  // of the second sequence
  scheduler.complete(first->id, {});
  scheduler.complete(second->id, {});
  first = scheduler.next();
  second = scheduler.next();
  scheduler.complete(second->id, {});
  EXPECT_FALSE(scheduler.next()) << "nothing can be preempted";
  scheduler.complete(first->id, {});
  const auto step = scheduler.next();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->sequences.front().id, 1u);
  EXPECT_EQ(scheduler.counts().preemptions, 1);
}

// ---- random events ----

// Plays the driver and the workers: knows what a request is owed, and checks every step against it.
class FakeExecutor {
 public:
  // A capricious rule gives every step another budget.
  FakeExecutor(SchedulerLimits limits, std::size_t lanes, std::uint64_t seed, bool capricious)
      : limits_(limits),
        lanes_(lanes),
        scheduler_(limits, std::vector<Lane>(lanes, {capricious ? any_budget(limits, seed) : fixed_steps({}, limits),
                                                     limits.micro_batches})),
        random_(seed) {}

  void run(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFatalFailure(); ++i) {
      switch (pick(0, 9)) {
        case 0:
        case 1: arrive(); break;
        case 2: cancel(); break;
        case 3:
        case 4:
        case 5: issue(); break;
        default: complete();
      }
      check_counts();
    }
    while (!live_.empty() && !::testing::Test::HasFatalFailure()) {
      issue();
      ASSERT_FALSE(under_way_.empty()) << "requests are left, but nothing is under way and no step comes";
      complete();
      check_counts();
    }
    while (!under_way_.empty() && !::testing::Test::HasFatalFailure()) complete();
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_EQ(scheduler_.counts().free_blocks, limits_.blocks);
    EXPECT_EQ(arrived_, ended_);
  }

  std::int64_t preemptions() const { return scheduler_.counts().preemptions; }
  std::int64_t arrived() const { return arrived_; }
  std::int64_t steps() const { return completed_; }
  std::int64_t most_steps() const { return most_steps_; }  // of one sequence at once

 private:
  struct Request {
    std::int64_t prompt = 0, output = 0, generated = 0, computed = 0;
    std::int64_t scheduled = 0;  // computed, or in a step under way
    std::int64_t steps = 0;      // under way
    bool begun = false;
    std::vector<std::int32_t> blocks = {};
    std::int32_t slot = -1;
    std::int64_t latest_end = 0;  // in completed steps
  };

  static StepRule any_budget(const SchedulerLimits& limits, std::uint64_t seed) {
    return [limits, random = std::mt19937_64(seed)](const StepState&) mutable {
      const auto up_to = [&](std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(1, most)(random);
      };
      return StepBudget{up_to(limits.micro_batches), up_to(limits.max_tokens), up_to(3)};
    };
  }

  std::int64_t pick(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution(low, high)(random_); }

  // The first in the queue gets a token at least every 2 M + 2 steps of each lane, so all ahead and then the
  // request itself are done within that many steps per token.
  std::int64_t bound_for(const Request& request) const {
    std::int64_t tokens = request.prompt + request.output;
    for (const auto& [id, ahead] : live_) tokens += ahead.prompt + ahead.output;
    return completed_ + (tokens + 1) * static_cast<std::int64_t>(lanes_) * (2 * limits_.micro_batches + 2);
  }

  void arrive() {
    const std::uint64_t id = ++next_id_;
    Request request{.prompt = pick(1, 40), .output = pick(1, 24)};
    const bool fits =
        (request.prompt + request.output + limits_.block_tokens - 1) / limits_.block_tokens <= limits_.blocks;
    const Admission admission =
        scheduler_.add(id, request.prompt, request.output, 0, 0, QueueLimit::applies, id % lanes_);
    ASSERT_EQ(admission == Admission::never_fits, !fits);
    if (admission != Admission::accepted) return;
    request.latest_end = bound_for(request);
    live_[id] = request;
    ++arrived_;
  }

  void cancel() {
    if (live_.empty()) return;
    auto found = live_.begin();
    std::advance(found, pick(0, std::ssize(live_) - 1));
    scheduler_.cancel(found->first);
    if (found->second.steps != 0) cancelled_[found->first] = found->second;
    live_.erase(found);
    ++ended_;
  }

  void issue() {
    const auto step = scheduler_.next();
    if (!step) {
      ASSERT_TRUE(live_.empty() || !under_way_.empty()) << "work is left, and nothing holds it up";
      return;
    }
    ASSERT_GT(step->id, last_step_);
    last_step_ = step->id;
    std::int64_t tokens = 0;
    ASSERT_FALSE(step->sequences.empty());
    ASSERT_LE(std::ssize(step->sequences), limits_.max_sequences);
    for (const Part& part : step->sequences) {
      ASSERT_TRUE(live_.contains(part.id)) << "a sequence that ended is scheduled";
      ASSERT_EQ(part.id % lanes_, step->lane);
      tokens += part.count;
      check_part(part, live_.at(part.id));
    }
    ASSERT_LE(tokens, limits_.max_tokens);
    under_way_.push_back(*step);
    ASSERT_LE(std::ranges::count(under_way_, step->lane, &ScheduledStep::lane), limits_.micro_batches);
    check_blocks_disjoint();
  }

  void check_part(const Part& part, Request& request) {
    if (part.position == 0 && request.steps == 0) request.computed = request.scheduled = 0;  // new, or preempted
    ASSERT_EQ(part.position, request.scheduled) << "a token is skipped, or computed twice";
    ASSERT_GT(part.count, 0);
    request.scheduled += part.count;
    most_steps_ = std::max(most_steps_, ++request.steps);
    const std::int64_t known = request.prompt + request.generated;
    ASSERT_LE(part.position + part.count, known);
    ASSERT_EQ(part.samples, part.position + part.count == known);
    if (part.position == 0) request.blocks.clear(), request.slot = part.slot;
    ASSERT_EQ(part.slot, request.slot);
    ASSERT_EQ(part.slot >= 0, limits_.slots > 0);
    ASSERT_LT(part.slot, std::max<std::int64_t>(1, limits_.slots));
    ASSERT_EQ(part.known_blocks, std::ssize(request.blocks)) << "blocks named twice, or not at all";
    request.blocks.insert(request.blocks.end(), part.blocks.begin(), part.blocks.end());
    ASSERT_EQ(std::ssize(request.blocks),
              (part.position + part.count + limits_.block_tokens - 1) / limits_.block_tokens);
    if (!request.begun) {
      std::uint64_t& last_begun = last_begun_[part.id % lanes_];
      ASSERT_GT(part.id, last_begun) << "not first come, first served";
      last_begun = part.id;
      request.begun = true;
    }
  }

  void check_blocks_disjoint() {
    std::map<std::int32_t, std::uint64_t> holder, slots;
    for (const auto& requests : {live_, cancelled_})
      for (const auto& [id, request] : requests) {
        if (request.steps == 0) continue;
        ASSERT_TRUE(request.slot < 0 || slots.emplace(request.slot, id).second) << "a slot is held twice";
        for (const std::int32_t block : request.blocks) {
          ASSERT_TRUE(block >= 0 && block < limits_.blocks);
          ASSERT_TRUE(holder.emplace(block, id).second) << "block " << block << " is held twice";
        }
      }
  }

  void complete() {
    if (under_way_.empty()) return;
    auto found = under_way_.begin() + pick(0, std::ssize(under_way_) - 1);
    for (std::ptrdiff_t i = 0; i < found - under_way_.begin(); ++i)
      if (share_a_sequence(under_way_[static_cast<std::size_t>(i)], *found)) {  // its tokens must be computed first
        found = under_way_.begin() + i;
        i = -1;
      }
    const ScheduledStep step = *found;
    under_way_.erase(found);
    ++completed_;
    std::set<std::uint64_t> finished;
    for (const Part& part : step.sequences) {
      const auto request = live_.find(part.id);
      if (request == live_.end()) {
        ASSERT_TRUE(cancelled_.contains(part.id));
        if (--cancelled_.at(part.id).steps == 0) cancelled_.erase(part.id);
        continue;
      }
      --request->second.steps;
      request->second.computed += part.count;
      if (!part.samples) continue;
      ++request->second.generated;
      if (request->second.generated == request->second.output || pick(0, 30) == 0) finished.insert(part.id);
    }
    scheduler_.complete(step.id, finished);
    for (const std::uint64_t id : finished) {
      ASSERT_LE(completed_, live_.at(id).latest_end) << "request " << id << " waited too long";
      live_.erase(id);
      ++ended_;
    }
  }

  static bool share_a_sequence(const ScheduledStep& a, const ScheduledStep& b) {
    return std::ranges::any_of(a.sequences, [&](const Part& part) {
      return std::ranges::find(b.sequences, part.id, &Part::id) != b.sequences.end();
    });
  }

  void check_counts() {
    const SchedulerCounts counts = scheduler_.counts();
    ASSERT_EQ(counts.waiting + counts.running, std::ssize(live_) + std::ssize(cancelled_));
    ASSERT_EQ(counts.steps_under_way, std::ssize(under_way_));
    ASSERT_TRUE(counts.free_blocks >= 0 && counts.free_blocks <= limits_.blocks);
  }

  SchedulerLimits limits_;
  std::size_t lanes_;
  Scheduler scheduler_;
  std::mt19937_64 random_;
  std::map<std::uint64_t, Request> live_, cancelled_;  // cancelled: still in a step
  std::vector<ScheduledStep> under_way_;
  std::map<std::size_t, std::uint64_t> last_begun_;  // by lane
  std::uint64_t next_id_ = 0, last_step_ = 0;
  std::int64_t arrived_ = 0, ended_ = 0, completed_ = 0, most_steps_ = 0;
};

TEST(SchedulerProperty, RandomEventsKeepAllPromises) {
  const std::vector<SchedulerLimits> all_limits = {
      {.blocks = 64, .block_tokens = 16, .max_tokens = 64, .max_sequences = 8, .micro_batches = 3, .max_queue = 50},
      {.blocks = 12, .block_tokens = 4, .max_tokens = 16, .max_sequences = 4, .micro_batches = 4, .max_queue = 20},
      {.blocks = 18,
       .block_tokens = 4,
       .max_tokens = 16,
       .max_sequences = 4,
       .micro_batches = 4,
       .max_queue = 20,
       .slots = 5},
      {.blocks = 30, .block_tokens = 3, .max_tokens = 5, .max_sequences = 9, .micro_batches = 2, .max_queue = 20},
      {.blocks = 65, .block_tokens = 1, .max_tokens = 7, .max_sequences = 3, .micro_batches = 5, .max_queue = 10},
      {.blocks = 20, .block_tokens = 4, .max_tokens = 512, .max_sequences = 32, .micro_batches = 1, .max_queue = 256}};
  std::uint64_t seed = 1;
  std::int64_t preemptions = 0, arrived = 0, steps = 0, most_steps = 0;
  for (const SchedulerLimits& limits : all_limits) {
    for (int repetition = 0; repetition < 4; ++repetition, ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      FakeExecutor executor(limits, repetition < 2 ? 1 : 3, seed, repetition % 2 == 1);
      executor.run(250'000);
      if (HasFatalFailure()) return;
      preemptions += executor.preemptions();
      arrived += executor.arrived();
      steps += executor.steps();
      most_steps = std::max(most_steps, executor.most_steps());
    }
  }
  // The events were worth having: many requests came, memory was tight, and chunks followed one another.
  EXPECT_GE(steps, 1'000'000);
  EXPECT_GT(arrived, 100'000);
  EXPECT_GT(preemptions, 5'000);
  EXPECT_EQ(most_steps, 5);
}

// ---- pipeline fill ----

struct Filled {
  double steps_per_s = 0;
  double tokens_per_s = 0;
};

// Stages of 10, 30 and 10 ms, each hand-over (and the token's way back) 5 ms, run on a simulated clock: a round trip of
// 65 ms.
Filled run_pipeline(std::int64_t micro_batches, std::uint64_t sequences) {
  const std::vector<double> stage_s = {0.010, 0.030, 0.010};
  const double hop_s = 0.005;
  Scheduler scheduler({.blocks = 10000, .micro_batches = micro_batches});
  for (std::uint64_t id = 1; id <= sequences; ++id) scheduler.add(id, 8, 4000);

  std::vector<double> stage_free_s(stage_s.size(), 0);
  struct Arrival {
    double time_s;
    std::uint64_t step;
    std::size_t samples;
    bool operator>(const Arrival& other) const { return time_s > other.time_s; }
  };
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals;
  double now_s = 0;
  const double warm_up_s = 2, end_s = 62;
  std::int64_t steps = 0, tokens = 0;
  while (now_s < end_s) {
    while (const auto step = scheduler.next()) {
      double at_s = now_s;
      for (std::size_t stage = 0; stage < stage_s.size(); ++stage) {
        at_s = std::max(at_s, stage_free_s[stage]) + stage_s[stage];
        stage_free_s[stage] = at_s;
        at_s += hop_s;
      }
      arrivals.push({at_s, step->id, step->sequences.size()});
    }
    const Arrival arrival = arrivals.top();
    arrivals.pop();
    now_s = arrival.time_s;
    scheduler.complete(arrival.step, {});
    if (now_s <= warm_up_s) continue;
    ++steps;
    tokens += static_cast<std::int64_t>(arrival.samples);
  }
  return {static_cast<double>(steps) / (now_s - warm_up_s), static_cast<double>(tokens) / (now_s - warm_up_s)};
}

TEST(PipelineFill, ThreeMicroBatchesKeepTheSlowestStageBusy) {
  const Filled filled = run_pipeline(3, 12);
  EXPECT_GE(filled.steps_per_s, 0.95 / 0.030);
  EXPECT_GE(filled.tokens_per_s, 0.95 * 4 / 0.030);  // each carries its share of the sequences
}

TEST(PipelineFill, OneMicroBatchIsBoundByTheRoundTrip) {
  const Filled filled = run_pipeline(1, 12);
  EXPECT_NEAR(filled.steps_per_s, 1 / 0.065, 0.01 / 0.065);
  EXPECT_NEAR(filled.tokens_per_s, 12 / 0.065, 0.12 / 0.065);
}

}  // namespace
}  // namespace motley
