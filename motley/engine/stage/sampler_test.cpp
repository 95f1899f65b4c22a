#include "motley/engine/stage/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace motley {
namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();

std::vector<float> some_logits() { return {1.0f, 2.5f, -0.5f, 2.0f, 0.0f, 1.5f, -3.0f, 2.4f}; }

std::int32_t token_of(const std::vector<float>& logits, const Sampling& sampling, std::int64_t position = 0) {
  return sample(logits, sampling, 0, position).token;
}

std::vector<double> softmax(std::vector<double> logits) {
  const double maximum = *std::max_element(logits.begin(), logits.end());
  for (double& logit : logits) logit = std::exp(logit - maximum);
  const double total = std::accumulate(logits.begin(), logits.end(), 0.0);
  for (double& weight : logits) weight /= total;
  return logits;
}

// The distribution after steps 4 to 7, by their definition and by brute force: tokens in order of probability, each
// kept or not.
std::vector<double> exact(const std::vector<float>& logits, const Sampling& s) {
  std::vector<double> scaled;
  for (const float logit : logits) scaled.push_back(static_cast<double>(logit) / static_cast<double>(s.temperature));
  std::vector<double> p = softmax(scaled);
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  if (s.top_k > 0)
    for (std::size_t i = static_cast<std::size_t>(s.top_k); i < order.size(); ++i) p[order[i]] = 0;
  const auto renormalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
  };
  renormalise();
  double before = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double mine = p[order[i]];
    if (i > 0 && before >= static_cast<double>(s.top_p)) p[order[i]] = 0;
    before += mine;
  }
  renormalise();
  for (double& x : p)
    if (x < p[order[0]] * static_cast<double>(s.min_p)) x = 0;
  renormalise();
  return p;
}

TEST(Sampler, DrawsFromTheExactDistribution) {
  constexpr int draws = 100000;
  const std::vector<Sampling> cases = {
      {.temperature = 1, .seed = 1},
      {.temperature = 0.7f, .seed = 2},
      {.temperature = 2, .top_k = 5, .seed = 3},
      {.temperature = 1, .top_p = 0.8f, .seed = 4},
      {.temperature = 1, .min_p = 0.3f, .seed = 5},
      {.temperature = 1.3f, .top_p = 0.9f, .top_k = 6, .min_p = 0.15f, .seed = 6},
  };
  for (const Sampling& sampling : cases) {
    const std::vector<float> logits = some_logits();
    const std::vector<double> expected = exact(logits, sampling);
    std::vector<int> counts(logits.size());
    for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(token_of(logits, sampling, i))];
    double chi_square = 0;
    int degrees = -1;
    for (std::size_t token = 0; token < logits.size(); ++token) {
      if (expected[token] == 0) {
        EXPECT_EQ(counts[token], 0) << "token " << token << ", seed " << sampling.seed;
        continue;
      }
      const double mean = expected[token] * draws;
      chi_square += (counts[token] - mean) * (counts[token] - mean) / mean;
      ++degrees;
    }
    // Mean d, variance 2d: beyond five standard deviations something is wrong.
    EXPECT_LT(chi_square, degrees + 5 * std::sqrt(2.0 * degrees)) << "seed " << sampling.seed;
  }
}

TEST(Sampler, DependsOnSeedAndPositionAlone) {
  const std::vector<float> flat(1000, 0.0f);
  const Sampling one{.seed = 1}, two{.seed = 2};
  EXPECT_EQ(token_of(flat, one, 5), token_of(flat, one, 5));
  EXPECT_EQ(sample(flat, one, 3, 5).token, sample(flat, one, 4, 5).token);
  EXPECT_NE(token_of(flat, one, 5), token_of(flat, two, 5));
  EXPECT_NE(token_of(flat, one, 5), token_of(flat, one, 6));
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(token_of({1, 3, 2, 3}, {.temperature = 0}), 1);
  EXPECT_EQ(token_of({-5, -5}, {.temperature = 0}), 0);
  EXPECT_EQ(token_of({7}, {.temperature = 0}), 0);
}

TEST(Sampler, NarrowFiltersLeaveTheMostLikely) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(token_of(some_logits(), {.top_k = 1}, i), 1);
    EXPECT_EQ(token_of(some_logits(), {.top_p = 0}, i), 1);
    EXPECT_EQ(token_of(some_logits(), {.top_p = 1e-9f}, i), 1);
    EXPECT_EQ(token_of(some_logits(), {.min_p = 1}, i), 1);
    EXPECT_EQ(token_of({2, 2, 2}, {.top_k = 1}, i), 0);  // ties to the lowest id
  }
}

TEST(Sampler, WideFiltersChangeNothing) {
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t plain = token_of(some_logits(), {.seed = 9}, i);
    EXPECT_EQ(token_of(some_logits(), {.top_p = 1, .top_k = 8, .seed = 9}, i), plain);
    EXPECT_EQ(token_of(some_logits(), {.top_k = 100, .seed = 9}, i), plain);
  }
}

// Whatever is filtered out, the number falls on the rest in the order of their ids: as if the others were forbidden.
TEST(Sampler, WhatIsLeftIsDrawnInTheOrderOfIds) {
  for (int i = 0; i < 1000; ++i) {
    const std::int32_t expected = token_of(some_logits(), {.seed = 5, .forbidden = {0, 2, 4, 6}}, i);
    EXPECT_EQ(token_of(some_logits(), {.top_k = 4, .seed = 5}, i), expected);
    EXPECT_EQ(token_of(some_logits(), {.top_p = 0.85f, .seed = 5}, i), expected);
  }
}

TEST(Sampler, MinPKeepsThoseAsLikelyAsTheFirst) {
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < 1000; ++i) ++seen[token_of({2, 1, 2, 2}, {.min_p = 1}, i)];
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.count(1), 0u);
}

TEST(Sampler, TopPKeepsTheTokenThatCrosses) {
  const std::vector<float> even(4, 0.0f);  // a quarter each
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < 1000; ++i) ++seen[token_of(even, {.top_p = 0.5f}, i)];
  EXPECT_EQ(seen.size(), 2u);
  seen.clear();
  for (int i = 0; i < 1000; ++i) ++seen[token_of(even, {.top_p = 0.51f}, i)];
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Sampler, BiasPenaltiesAndForbiddenTokensMoveTheChoice) {
  const std::vector<float> logits = {1, 2, 3};
  EXPECT_EQ(token_of(logits, {.temperature = 0, .logit_bias = {{0, 5.0f}}}), 0);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .logit_bias = {{0, 5.0f}}, .forbidden = {0}}), 2);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .forbidden = {2, 1}}), 0);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .presence_penalty = 1.5f, .generated = {2, 2, 2}}), 1);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .frequency_penalty = 0.4f, .generated = {2, 2}}), 2);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .frequency_penalty = 0.4f, .generated = {2, 2, 2}}), 1);
  EXPECT_EQ(token_of(logits, {.temperature = 0, .presence_penalty = -3, .generated = {1}}), 1);
  // Ids outside the vocabulary are ignored.
  EXPECT_EQ(token_of(logits, {.temperature = 0, .logit_bias = {{77, 5.0f}}, .forbidden = {-1, 99}}), 2);
}

TEST(Sampler, LogprobsAreTheModels) {
  const std::vector<float> logits = some_logits();
  const std::vector<double> p = softmax({logits.begin(), logits.end()});
  const Sampling sampling{.temperature = 0, .logprobs = 3, .logit_bias = {{6, 100.0f}}};
  const SampledToken chosen = sample(logits, sampling, 42, 0);
  EXPECT_EQ(chosen.sequence, 42u);
  EXPECT_EQ(chosen.token, 6);
  EXPECT_NEAR(chosen.logprob, std::log(p[6]), 1e-5);
  ASSERT_EQ(chosen.top.size(), 3u);
  const std::vector<std::int32_t> best = {1, 7, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(chosen.top[i].token, best[i]);
    EXPECT_NEAR(chosen.top[i].logprob, std::log(p[static_cast<std::size_t>(best[i])]), 1e-5);
  }
  const SampledToken drawn = sample(logits, {.temperature = 0.5f, .seed = 3, .logprobs = 0}, 0, 0);
  EXPECT_NEAR(drawn.logprob, std::log(p[static_cast<std::size_t>(drawn.token)]), 1e-5);
  const SampledToken equals = sample(std::vector<float>{1, 2, 0, 2}, {.logprobs = 2}, 0, 0);
  EXPECT_EQ(equals.top[0].token, 1);
  EXPECT_EQ(equals.top[1].token, 3);
  EXPECT_EQ(sample(logits, {.logprobs = 100}, 0, 0).top.size(), logits.size());
  EXPECT_TRUE(sample(logits, {.logprobs = 0}, 0, 0).top.empty());
  EXPECT_EQ(sample(logits, {.logprobs = -1}, 0, 0).logprob, 0);
}

TEST(Sampler, RefusesWhenNothingCanBeChosen) {
  EXPECT_THROW(token_of({1, 2}, {.temperature = 0, .forbidden = {0, 1}}), Error);
  EXPECT_THROW(token_of({NAN, -infinite}, {}), Error);
  EXPECT_EQ(token_of({NAN, 0, -infinite}, {}), 1);
  EXPECT_EQ(token_of({0, infinite}, {}), 1);
}

}  // namespace
}  // namespace motley
