#include "motley/probe/fit/routing_counts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "motley/cost/serve/step.hpp"

namespace motley {
namespace {

Model mixture(std::int64_t count, std::int64_t active) {
  Model model;
  model.name = "mixture";
  model.arch.layers = 2;
  model.arch.kinds.front().experts = {.count = count, .active = active};
  return model;
}

// Of 128 tokens that each take the one expert of a place in the text.
TEST(CountExperts, OfNeighboursAndOfTokensThatLieApart) {
  TokenExperts by_eights{.layer = 1, .experts = {}};
  for (int token = 0; token < 128; ++token) by_eights.experts.push_back(token / 8);
  const std::vector<ExpertCount> counts = count_experts(mixture(16, 1), {by_eights});
  ASSERT_EQ(counts.size(), 4u);
  EXPECT_EQ(counts[0], (ExpertCount{"mixture", 1, 1, 1, 1}));
  EXPECT_EQ(counts[1], (ExpertCount{"mixture", 1, 4, 4, 1}));
  EXPECT_EQ(counts[2], (ExpertCount{"mixture", 1, 16, 16, 2}));
  EXPECT_EQ(counts[3], (ExpertCount{"mixture", 1, 64, 16, 8}));
}

TEST(CountExperts, MeanOverGroups) {
  TokenExperts halves{.layer = 0, .experts = {}};  // the first half of the text takes 0 and 1, the other all in turn
  for (int token = 0; token < 128; ++token)
    for (int i = 0; i < 2; ++i) halves.experts.push_back(token < 64 ? i : (2 * token + i) % 8);
  const std::vector<ExpertCount> counts = count_experts(mixture(8, 2), {halves});
  EXPECT_EQ(counts[1].distinct_of_prompt, (16 * 2 + 16 * 8) / 32.0);
  EXPECT_EQ(counts[3].distinct_of_prompt, (2 + 8) / 2.0);
}

// Popular experts, as by Zipf's law, in two layers: the price passes through the means of both.
TEST(FitGamma, PricesWhatWasCounted) {
  const Model model = mixture(32, 4);
  std::mt19937 random(1);
  std::vector<TokenExperts> layers;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    TokenExperts& taken = layers.emplace_back(layer, std::vector<std::int32_t>());
    for (int token = 0; token < 4096; ++token) {
      std::vector<std::int32_t> order(32);
      std::iota(order.begin(), order.end(), 0);
      std::vector<double> scores;
      for (int expert = 0; expert < 32; ++expert)
        scores.push_back(std::generate_canonical<double, 53>(random) / (expert + 1.0));
      std::ranges::sort(order, std::greater(),
                        [&](std::int32_t expert) { return scores[static_cast<std::size_t>(expert)]; });
      taken.experts.insert(taken.experts.end(), order.begin(), order.begin() + 4);
    }
  }
  const std::vector<ExpertCount> counts = count_experts(model, layers);
  const std::vector<RoutingGamma> gamma = fit_gamma(model, counts);
  ASSERT_EQ(gamma.size(), 3u);
  const Experts& experts = model.arch.kinds.front().experts;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto tokens = static_cast<double>(counts[i].tokens);
    EXPECT_NEAR(32 * touched_share(experts, {.tokens = tokens, .logits = tokens}, gamma),
                (counts[i].distinct + counts[i + 4].distinct) / 2, 1e-9);
    EXPECT_NEAR(32 * touched_share(experts, {.tokens = tokens}, gamma),
                (counts[i].distinct_of_prompt + counts[i + 4].distinct_of_prompt) / 2, 1e-9);
  }
  for (const RoutingGamma& part : gamma) {
    EXPECT_EQ(part.model, "mixture");
    EXPECT_LT(part.sequences, 1);
    EXPECT_GT(part.sequences, 0.1);
  }
}

TEST(FitGamma, StaysBetweenOneExpertForAllAndChance) {
  const Model model = mixture(8, 2);
  std::vector<ExpertCount> all_alike, all_unlike;
  for (const std::int64_t tokens : {1, 4, 16, 64}) {
    all_alike.push_back({"mixture", 0, tokens, 2, 2});
    all_unlike.push_back({"mixture", 0, tokens, std::min(8.0, 2.0 * static_cast<double>(tokens)), 2});
  }
  for (const RoutingGamma& part : fit_gamma(model, all_alike)) EXPECT_EQ(part.sequences, 0.01);
  for (const RoutingGamma& part : fit_gamma(model, all_unlike)) EXPECT_LE(part.sequences, 1);
  EXPECT_EQ(fit_gamma(model, all_unlike).front().sequences, 1);
}

}  // namespace
}  // namespace motley
