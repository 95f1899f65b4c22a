#include "motley/serving/dispatcher.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "motley/serving/driver_fixture_test.hpp"
#include "motley/serving/running_plan.hpp"

namespace motley {
namespace {

constexpr std::int32_t eos = 1;  // of the tales model

StepResult answer(const Step& step, std::int32_t token) {
  StepResult result{.step = step.step, .compute_s = 0, .wait_s = 0, .tokens = {}};
  for (const StepSequence& sequence : step.sequences)
    if (sequence.sampling)
      result.tokens.push_back({.sequence = sequence.sequence, .token = token, .logprob = 0, .top = {}});
  return result;
}

// The events of the next step when it answers `token`.
std::vector<GenerateEvent> advance(Dispatcher& dispatcher, std::int32_t token) {
  const auto step = dispatcher.next();
  EXPECT_TRUE(step);
  return dispatcher.complete(answer(*step, token));
}

GenerateRequest ask_until_eos(std::vector<std::int32_t> prompt, std::int64_t max_new_tokens) {
  GenerateRequest request = ask(std::move(prompt), max_new_tokens);
  request.ignore_eos = false;
  return request;
}

TEST(Dispatcher, StepsCarryTheTokensOfPromptAndOutput) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
  GenerateRequest request = ask({11, 12, 13}, 5);
  request.sampling.temperature = 0.5f;
  request.sampling.presence_penalty = 1;
  const std::uint64_t id = dispatcher.add(request);
  const auto prompt = dispatcher.next();
  ASSERT_TRUE(prompt);
  EXPECT_EQ(prompt->sequences.at(0).tokens, (std::vector<std::int32_t>{11, 12, 13}));
  EXPECT_EQ(prompt->sequences.at(0).sampling, request.sampling);
  EXPECT_FALSE(dispatcher.next());
  EXPECT_EQ(dispatcher.tokens_under_way(), 3);
  const auto events = dispatcher.complete(answer(*prompt, 70));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].request, id);
  EXPECT_EQ(events[0].token->token, 70);
  const auto decode = dispatcher.next();
  EXPECT_EQ(decode->sequences.at(0).tokens, std::vector<std::int32_t>{70});
  EXPECT_EQ(decode->sequences.at(0).position, 3);
  EXPECT_EQ(decode->sequences.at(0).sampling->generated, std::vector<std::int32_t>{70});  // for the penalty
}

// What a decode adds to a sequence is one token, and a block now and then.
TEST(Dispatcher, ADecodeStepIsNoLargerForALongContext) {
  constexpr std::size_t sequences = 16;
  ServePlan plan = toy_plan({{1}}, std::int64_t{sequences} * 8'400);
  plan.model.arch.context = 10'000;
  plan.step.max_sequences = sequences;
  plan.step.max_tokens = 4'096;
  const auto bytes_with = [&](std::size_t context) {
    Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 100, fixed_steps);
    for (std::size_t i = 0; i < sequences; ++i) dispatcher.add(ask(std::vector<std::int32_t>(context, 3), 200));
    for (;;) {
      const auto step = dispatcher.next();
      const auto decodes = [](const StepSequence& part) { return part.count == 1; };
      if (step->sequences.size() == sequences && std::ranges::all_of(step->sequences, decodes))
        return encode(*step).size();
      dispatcher.complete(answer(*step, 70));
    }
  };
  constexpr std::size_t one_block_each = sequences * sizeof(std::int32_t);
  EXPECT_LE(bytes_with(8'192), bytes_with(32) + one_block_each);
  EXPECT_LE(bytes_with(8'192), 120 * sequences);
}

TEST(Dispatcher, AnythingPreemptedIsComputedAnewWithItsOutput) {
  const ServePlan plan = toy_plan({{1}}, 64);  // four blocks
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10, timed_steps, false);
  const std::vector<std::int32_t> prompt(30, 9);
  dispatcher.add(ask(prompt, 20));
  const std::uint64_t second = dispatcher.add(ask(prompt, 20));
  std::vector<std::int32_t> known = prompt;
  bool computed_anew = false;
  for (std::int32_t token = 100; !computed_anew && token < 200; ++token) {
    const auto step = dispatcher.next();
    ASSERT_TRUE(step);
    for (const StepSequence& sequence : step->sequences) {
      if (sequence.sequence != second) continue;
      if (sequence.position == 0 && known.size() > prompt.size()) {
        EXPECT_EQ(sequence.tokens, known);
        computed_anew = true;
      }
      known.push_back(token);
    }
    dispatcher.complete(answer(*step, token));
  }
  EXPECT_TRUE(computed_anew);
}

// Log-probabilities of a prompt that say which token they are of.
StepResult scored_answer(const Step& step, std::int32_t token) {
  StepResult result = answer(step, token);
  for (const StepSequence& sequence : step.sequences) {
    if (!sequence.scoring) continue;
    SequenceScores& scores = result.scores.emplace_back(SequenceScores{.sequence = sequence.sequence});
    for (const std::int32_t target : sequence.scoring->targets)
      scores.scores.push_back({.logprob = -static_cast<float>(target)});
  }
  return result;
}

std::vector<float> logprobs(const GenerateEvent& event) {
  std::vector<float> out;
  for (const TokenScore& score : event.prompt_scores.value()) out.push_back(score.logprob);
  return out;
}

TEST(Dispatcher, APromptIsScoredInChunksBeforeItsFirstToken) {
  ServePlan plan = toy_plan({{1}});
  plan.step.max_tokens = 4;
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 10, fixed_steps);
  GenerateRequest request = ask({11, 12, 13, 14, 15, 16}, 2);
  request.prompt_logprobs = 3;
  dispatcher.add(request);
  const auto first = dispatcher.next();
  EXPECT_EQ(first->sequences.at(0).scoring, (Scoring{{12, 13, 14, 15}, 3}));
  EXPECT_TRUE(dispatcher.complete(scored_answer(*first, 70)).empty());
  const auto last = dispatcher.next();
  EXPECT_EQ(last->sequences.at(0).scoring, (Scoring{{16}, 3}));
  const auto events = dispatcher.complete(scored_answer(*last, 70));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(logprobs(events[0]), (std::vector<float>{-12, -13, -14, -15, -16}));
  EXPECT_EQ(events[1].token->token, 70);
  EXPECT_FALSE(dispatcher.next()->sequences.at(0).scoring);
}

TEST(Dispatcher, WithoutNewTokensAPromptMayFillTheContext) {
  const ServePlan plan = toy_plan({{1}});
  const auto context = static_cast<std::size_t>(plan.model.arch.context);
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 10);
  GenerateRequest request = ask(std::vector<std::int32_t>(context, 9), 0);
  request.prompt_logprobs = 0;
  dispatcher.add(request);
  std::vector<GenerateEvent> events;
  while (!dispatcher.idle()) events = dispatcher.complete(scored_answer(*dispatcher.next(), 70));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(logprobs(events[0]), std::vector<float>(context - 1, -9));
  EXPECT_EQ(events[1].finished, FinishReason::length);

  dispatcher.add(ask({5}, 0));
  EXPECT_EQ(dispatcher.complete(answer(*dispatcher.next(), 70)).at(0).finished, FinishReason::length);
  request.prompt.push_back(9);
  EXPECT_THROW(dispatcher.add(request), Error);
}

TEST(Dispatcher, ScoresOutliveAChangeOfThePlan) {
  ServePlan plan = toy_plan({{1}});
  plan.step.max_tokens = 4;
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 10, fixed_steps);
  GenerateRequest request = ask({11, 12, 13, 14, 15, 16}, 1);
  request.prompt_logprobs = 0;
  dispatcher.add(request);
  dispatcher.complete(scored_answer(*dispatcher.next(), 70));
  plan.step.max_tokens = 3;
  dispatcher.change_plan(std::make_shared<const ServePlan>(plan), 2);
  dispatcher.resume();
  const auto again = dispatcher.next();
  EXPECT_FALSE(again->sequences.at(0).scoring) << "all of its targets are known";
  dispatcher.complete(scored_answer(*again, 70));
  const auto events = dispatcher.complete(scored_answer(*dispatcher.next(), 70));
  EXPECT_EQ(logprobs(events.at(0)), (std::vector<float>{-12, -13, -14, -15, -16}));
}

TEST(Dispatcher, RefusesScoresThatWereNotAskedFor) {
  const ServePlan plan = toy_plan({{1}});
  const auto refused = [&](const std::function<void(StepResult&)>& change) {
    Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 10);
    GenerateRequest request = ask({11, 12, 13}, 1);
    request.prompt_logprobs = 1;
    dispatcher.add(request);
    StepResult result = scored_answer(*dispatcher.next(), 70);
    change(result);
    EXPECT_THROW(dispatcher.complete(result), Error);
  };
  refused([](StepResult& result) { result.scores.clear(); });
  refused([](StepResult& result) { result.scores.push_back(result.scores[0]); });
  refused([](StepResult& result) { result.scores[0].sequence += 1; });
  refused([](StepResult& result) { result.scores[0].scores.pop_back(); });
  refused([](StepResult& result) { result.scores[0].scores[0].top = {{99999, 0}}; });
}

TEST(Dispatcher, EndsAtEosStopTokensAndLengths) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);

  dispatcher.add(ask_until_eos({5}, 9));
  auto events = advance(dispatcher, eos);
  ASSERT_EQ(events.size(), 1u);  // eos is not part of the output
  EXPECT_EQ(events[0].finished, FinishReason::stop);

  GenerateRequest stops = ask({5}, 9);
  stops.stop_tokens = {77};
  dispatcher.add(stops);
  EXPECT_EQ(advance(dispatcher, eos).at(0).token->token, eos);  // ignored
  events = advance(dispatcher, 77);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finished, FinishReason::stop);

  dispatcher.add(ask({5}, 2));
  EXPECT_EQ(advance(dispatcher, 8).size(), 1u);
  events = advance(dispatcher, 8);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].token->token, 8);
  EXPECT_EQ(events[1].finished, FinishReason::length);

  dispatcher.add(ask(std::vector<std::int32_t>(510, 5), 100));  // two tokens are left of the context
  while (!dispatcher.idle()) events = advance(dispatcher, 8);
  EXPECT_EQ(events.back().finished, FinishReason::length);
}

TEST(Dispatcher, EndsAreForbiddenUntilTheLeastNumberOfTokens) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
  GenerateRequest request = ask_until_eos({5}, 9);
  request.min_new_tokens = 1;
  request.stop_tokens = {77};
  dispatcher.add(request);
  const auto first = dispatcher.next();
  EXPECT_EQ(first->sequences.at(0).sampling->forbidden, (std::vector<std::int32_t>{77, eos}));
  EXPECT_TRUE(first->sequences.at(0).sampling->generated.empty());  // no penalty needs them
  dispatcher.complete(answer(*first, 8));
  EXPECT_TRUE(dispatcher.next()->sequences.at(0).sampling->forbidden.empty());
}

TEST(Dispatcher, TokensOfCancelledRequestsAreDropped) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
  const std::uint64_t id = dispatcher.add(ask({5}, 9));
  const auto step = dispatcher.next();
  EXPECT_TRUE(dispatcher.cancel(id));
  EXPECT_FALSE(dispatcher.cancel(id));
  EXPECT_TRUE(dispatcher.complete(answer(*step, 8)).empty());
  DriverStatus status;
  dispatcher.describe(status);
  EXPECT_EQ(status.free_blocks, status.total_blocks);
}

TEST(Dispatcher, RefusesAnswersThatNobodyAskedFor) {
  const ServePlan plan = toy_plan({{1}});
  const std::vector<void (*)(StepResult&)> lies = {
      [](StepResult& result) { result.step += 1; }, [](StepResult& result) { result.tokens.clear(); },
      [](StepResult& result) { result.tokens.push_back(result.tokens[0]); },
      [](StepResult& result) { result.tokens[0].sequence += 1; },
      [](StepResult& result) { result.tokens[0].token = 2048; }};
  for (const auto lie : lies) {
    Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
    dispatcher.add(ask({5}, 9));
    StepResult result = answer(*dispatcher.next(), 8);
    lie(result);
    EXPECT_THROW(dispatcher.complete(result), Error);
  }
}

TEST(Dispatcher, RequestsFollowTheWeightsOfTheRoutes) {
  ServePlan plan = toy_plan({{1}, {1, 1}});
  plan.routes[1].weight = 3;
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 100);
  for (int i = 0; i < 40; ++i) dispatcher.add(ask({5}, 9));
  DriverStatus status;
  dispatcher.describe(status);
  EXPECT_EQ(status.waiting, (std::vector<std::int64_t>{10, 30}));
  EXPECT_EQ(dispatcher.next()->route + dispatcher.next()->route, 1u);  // one step of each
}

// Two first stages that feed one second stage: its blocks are handed out once.
TEST(Dispatcher, RoutesThatShareAStageShareItsBlocks) {
  ServePlan plan = toy_plan({{1, 1}, {1, 1}}, 64);
  plan.routes[1].path[1].stage = plan.routes[0].path[1].stage;
  plan.stages.pop_back();
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 2, 100);
  DriverStatus status;
  dispatcher.describe(status);
  EXPECT_EQ(status.total_blocks, 4);
  for (int i = 0; i < 4; ++i) dispatcher.add(ask({5}, 1));
  const auto first = dispatcher.next(), second = dispatcher.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->route, 0u);
  EXPECT_EQ(second->route, 1u);
  std::set<std::int32_t> blocks;
  for (const auto& step : {*first, *second})
    for (const StepSequence& sequence : step.sequences) blocks.insert(sequence.blocks.at(0));
  EXPECT_EQ(blocks.size(), 4u);
  dispatcher.complete(answer(*second, 8));
  EXPECT_FALSE(dispatcher.idle());
  dispatcher.complete(answer(*first, 8));
  EXPECT_TRUE(dispatcher.idle());
}

// The plan's only stage takes 50 ms for every step, whatever the cost model says.
TEST(Dispatcher, MeasuredTimesCorrectThoseOfThePlan) {
  const auto plan = std::make_shared<const ServePlan>(toy_plan({{1}}));
  Dispatcher dispatcher(plan, 0, 10);
  const auto run = [&](const StepSeconds& measured) {
    dispatcher.add(ask({11, 12, 13}, 40));
    while (!dispatcher.idle()) dispatcher.complete(answer(dispatcher.next().value(), 70), measured);
  };
  const auto status = [&] {
    DriverStatus all;
    dispatcher.describe(all);
    return all.pipelines.at(0);
  };
  const auto one_token_s = [](const PipelineTime& times) {
    return times.visits.at(0).time.seconds({.tokens = 1, .logits = 1});
  };
  dispatcher.warm_up();
  while (!dispatcher.warm())
    dispatcher.complete(answer(dispatcher.next().value(), 70), {.stage_s = {9.0}, .alone_s = 9.5});
  dispatcher.resume();
  EXPECT_EQ(status().steps, std::vector<std::int64_t>{0}) << "the first step pays for more than others";
  EXPECT_EQ(one_token_s(status().measured), one_token_s(status().predicted));
  run({});
  EXPECT_EQ(status().steps, std::vector<std::int64_t>{0});
  run({.stage_s = {0.05}, .alone_s = 0.06});
  EXPECT_EQ(status().steps, std::vector<std::int64_t>{40});
  EXPECT_EQ(status().alone, 40);
  EXPECT_NEAR(one_token_s(status().measured), 0.05, 0.005);
  EXPECT_NEAR(status().measured.back_s, 0.01, 0.002);
  EXPECT_LT(one_token_s(status().predicted), 0.04);
  DriverStatus all;
  all.plan = plan;
  dispatcher.describe(all);
  const std::string report = to_json(running_plan(all));
  EXPECT_NE(report.find(R"("stage":"r0/s0","measured_steps":40,"predicted":{"one_token_s":)"), std::string::npos)
      << report;
}

TEST(Dispatcher, TellsWhoseWorkerBecameSlow) {
  const auto plan = std::make_shared<const ServePlan>(toy_plan({{1, 1}}));
  Dispatcher dispatcher(plan, 1, 10);
  dispatcher.warm_up();
  while (!dispatcher.warm()) dispatcher.complete(answer(dispatcher.next().value(), 70));
  dispatcher.resume();
  const auto run = [&](double first_s, double second_s) {
    dispatcher.add(ask({11, 12, 13}, 60));
    while (!dispatcher.idle())
      dispatcher.complete(answer(dispatcher.next().value(), 70),
                          {.stage_s = {first_s, second_s}, .device_s = {{"box/0", first_s}, {"box/1", second_s}}});
  };
  run(0.05, 0.1);
  run(0.05, 0.1);
  EXPECT_TRUE(dispatcher.slow({}).empty());
  dispatcher.add(ask({11, 12, 13}, 60));
  const Step step = dispatcher.next().value();
  EXPECT_TRUE(dispatcher.slow({{"box/0", step.step, 3}}).empty()) << "prompts of this size were too few";
  dispatcher.complete(answer(step, 70));
  const Step next = dispatcher.next().value();
  EXPECT_TRUE(dispatcher.slow({{"box/0", next.step, 3}}).empty());
  EXPECT_GT(dispatcher.slow({{"box/0", next.step, 4}})["box/0"], 10) << "a step that has not ended";
  dispatcher.complete(answer(next, 70));
  while (!dispatcher.idle()) dispatcher.complete(answer(dispatcher.next().value(), 70));
  run(1, 0.1);
  const auto slow = dispatcher.slow({});
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_NEAR(slow.at("box/0"), 20, 0.5);
  dispatcher.change_plan(std::make_shared<const ServePlan>(placed_on(toy_plan({{1}}), *plan, {"box/1"})), 2);
  EXPECT_TRUE(dispatcher.slow({}).empty());
}

}  // namespace
}  // namespace motley
