#include <gtest/gtest.h>

#include "motley/serving/dispatcher.hpp"
#include "motley/serving/driver_fixture_test.hpp"

namespace motley {
namespace {

std::string complaint(const GenerateRequest& request) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
  try {
    dispatcher.add(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return error.what();
  }
  return "none";
}

TEST(DispatcherBorders, TokensAreThoseOfTheVocabulary) {
  const auto size = static_cast<std::int32_t>(toy_plan({{1}}).model.arch.vocabulary);
  const std::string wrong = "which is not in the vocabulary of " + std::to_string(size);
  EXPECT_EQ(complaint(ask({0, size - 1}, 1)), "none");
  EXPECT_NE(complaint(ask({size}, 1)).find(wrong), std::string::npos);
  EXPECT_NE(complaint(ask({-1}, 1)).find(wrong), std::string::npos);
  GenerateRequest request = ask({5}, 1);
  request.sampling.logit_bias = {{size - 1, 1.0f}};
  EXPECT_EQ(complaint(request), "none");
  request.sampling.logit_bias = {{size, 1.0f}};
  EXPECT_NE(complaint(request).find("the logit bias holds token " + std::to_string(size)), std::string::npos);
  request.sampling.logit_bias.clear();
  request.stop_tokens = {size};
  EXPECT_NE(complaint(request).find("the list of stop tokens holds token"), std::string::npos);
}

TEST(DispatcherBorders, APromptLeavesRoomForOneToken) {
  const std::int64_t context = toy_plan({{1}}).model.arch.context;
  EXPECT_EQ(complaint(ask(std::vector<std::int32_t>(static_cast<std::size_t>(context - 1), 5), 1)), "none");
  EXPECT_NE(complaint(ask(std::vector<std::int32_t>(static_cast<std::size_t>(context), 5), 1)).find("context is"),
            std::string::npos);
  EXPECT_EQ(complaint(ask({5}, -1)), "the request asks for -1 new tokens");
}

TEST(DispatcherBorders, WhatIsDoneIsNoLongerUnderWay) {
  const ServePlan plan = toy_plan({{1}});
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
  dispatcher.add(ask({11, 12, 13}, 2));
  const auto step = dispatcher.next();
  ASSERT_TRUE(step);
  EXPECT_EQ(dispatcher.tokens_under_way(), 3);
  dispatcher.complete({.step = step->step,
                       .compute_s = 0,
                       .wait_s = 0,
                       .tokens = {{.sequence = step->sequences[0].sequence, .token = 7, .logprob = 0, .top = {}}}});
  EXPECT_EQ(dispatcher.tokens_under_way(), 0);
}

// Until it has as many tokens as it must, nothing may end an answer; the model's own end only where it counts.
TEST(DispatcherBorders, WhatMustNotEndItIsForbidden) {
  const ServePlan plan = toy_plan({{1}});
  const auto forbidden = [&](bool ignore_eos) {
    Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 0, 10);
    GenerateRequest request = ask({5}, 4);
    request.min_new_tokens = 1;
    request.stop_tokens = {77};
    request.ignore_eos = ignore_eos;
    dispatcher.add(request);
    return dispatcher.next()->sequences.at(0).sampling->forbidden;
  };
  EXPECT_EQ(forbidden(true), std::vector<std::int32_t>{77});
  std::vector<std::int32_t> all = {77};
  for (const std::int64_t eos : plan.model.arch.eos_tokens) all.push_back(static_cast<std::int32_t>(eos));
  EXPECT_GT(all.size(), 1u);
  EXPECT_EQ(forbidden(false), all);
}

}  // namespace
}  // namespace motley
