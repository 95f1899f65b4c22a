#include "motley/probe/fit/calibrate.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "motley/base/random.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

// A CPU like a small server's, which the fit must find again.
const StepRates truth{.bandwidth_bytes_per_s = 20e9,
                      .product_flop_per_s = 60e9,
                      .attention_bandwidth_bytes_per_s = 6e9,
                      .attention_flop_per_s = 13e9,
                      .overhead = {.layer_s = 30e-6, .step_s = 50e-6}};

Rank rank_of(double block_bytes) {
  Rank rank;
  rank.blocks = {{.bytes = static_cast<std::int64_t>(block_bytes),
                  .kv_bytes = 800,
                  .attention_flops = 800,
                  .flops = block_bytes / 2}};  // fp32
  rank.head_bytes = 1.5e6;
  rank.head_flops = rank.head_bytes / 2;
  return rank;
}

// Steps of one and of four layers with narrow and with wide blocks, timed by `truth`.
struct Samples {
  Rank narrow = rank_of(1.6e6), wide = rank_of(5e6);
  std::vector<StepSample> list;

  explicit Samples(const StepRates& rates = truth) {
    const std::vector<StepLoad> loads{
        {1, 0.5, 0.5, 1}, {1, 256, 256, 1}, {8, 256, 2048, 8}, {64, 32, 32, 1}, {64, 288, 288, 1}};
    for (const Rank* rank : {&narrow, &wide})
      for (const double layers : {1, 4})
        for (const StepLoad& load : loads) {
          list.push_back({rank, layers, load, 0});
          list.back().seconds = step_s(list.back(), rates);
        }
  }
};

TEST(FitSteps, FindsTheRatesThatTimedTheSteps) {
  const Samples samples;
  const StepRates rates = fit_steps(samples.list);
  EXPECT_NEAR(rates.bandwidth_bytes_per_s, truth.bandwidth_bytes_per_s, 1e-6 * truth.bandwidth_bytes_per_s);
  EXPECT_NEAR(rates.product_flop_per_s, truth.product_flop_per_s, 1e-6 * truth.product_flop_per_s);
  EXPECT_NEAR(rates.attention_bandwidth_bytes_per_s, truth.attention_bandwidth_bytes_per_s,
              1e-6 * truth.attention_bandwidth_bytes_per_s);
  EXPECT_NEAR(rates.attention_flop_per_s, truth.attention_flop_per_s, 1e-6 * truth.attention_flop_per_s);
  EXPECT_NEAR(rates.overhead.layer_s, truth.overhead.layer_s, 1e-10);
  EXPECT_NEAR(rates.overhead.step_s, truth.overhead.step_s, 1e-10);
  EXPECT_LT(fit_error(samples.list, rates).worst, 1e-6);
  EXPECT_FALSE(rates.in_turn);
}

TEST(FitSteps, TellsReadingInTurnFromReadingAtOnce) {
  StepRates in_turn = truth;
  in_turn.in_turn = true;
  const Samples samples(in_turn);
  const StepRates rates = fit_steps(samples.list);
  EXPECT_TRUE(rates.in_turn);
  EXPECT_NEAR(rates.bandwidth_bytes_per_s, truth.bandwidth_bytes_per_s, 1e-6 * truth.bandwidth_bytes_per_s);
  EXPECT_NEAR(rates.product_flop_per_s, truth.product_flop_per_s, 1e-6 * truth.product_flop_per_s);
  EXPECT_LT(fit_error(samples.list, rates).worst, 1e-6);
}

RC_GTEST_PROP(FitSteps, NoiseOfAFewPercentMovesThePredictionsByNoMore, (std::uint32_t seed)) {
  Samples samples;
  const std::vector<StepSample> exact = samples.list;
  for (std::size_t i = 0; i < samples.list.size(); ++i)
    samples.list[i].seconds *= 1 + 0.04 * (uniform_at(seed, i) - 0.5);
  const StepRates rates = fit_steps(samples.list);
  RC_ASSERT(fit_error(exact, rates).worst < 0.04);
  RC_ASSERT(rates.overhead.layer_s >= 0 && rates.overhead.step_s >= 0);
}

TEST(FitSteps, ADisturbedSampleOrTwoDoNotCount) {
  Samples samples;
  const std::vector<StepSample> exact = samples.list;
  samples.list[3].seconds *= 3;
  samples.list[14].seconds *= 2;
  EXPECT_LT(fit_error(exact, fit_steps(samples.list)).worst, 0.01);
}

// Weights that stay in a cache of a processor that computes slowly: reading them never shows.
TEST(FitSteps, WhatNoSampleShowsIsTheLeastThatFits) {
  StepRates cached = truth;
  cached.bandwidth_bytes_per_s = 1e13;
  const Samples samples(cached);
  const StepRates fitted = fit_steps(samples.list), rates = with_unseen_rates(fitted, samples.list);
  EXPECT_TRUE(std::isinf(fitted.bandwidth_bytes_per_s));
  EXPECT_NEAR(rates.product_flop_per_s, truth.product_flop_per_s, 1e-6 * truth.product_flop_per_s);
  // One row: two bytes per FLOP.
  EXPECT_NEAR(rates.bandwidth_bytes_per_s, 2 * truth.product_flop_per_s, 1e-6 * truth.product_flop_per_s);
  EXPECT_LT(fit_error(samples.list, rates).worst, 1e-6);
  EXPECT_EQ(with_unseen_rates(rates, samples.list).bandwidth_bytes_per_s, rates.bandwidth_bytes_per_s);
}

// What the steps say of themselves is the cost model's own word.
TEST(FitSteps, PricesAStepAsTheModelDoes) {
  const Cluster cluster = d1_cluster();
  const Model model = d1_model();
  TensorGroup group = make_group(cluster, model.arch, {0}, {}, DType::fp16, DType::fp16, {});
  Rank& rank = group.ranks.front();
  rank.efficiency = {.compute = 1, .bandwidth = 1, .attention_compute = 0.25, .attention_bandwidth = 0.5};
  rank.overhead = truth.overhead;
  StepRates rates{.bandwidth_bytes_per_s = rank.memory_bandwidth_bytes_per_s,
                  .product_flop_per_s = rank.flop_per_s,
                  .attention_bandwidth_bytes_per_s = rank.memory_bandwidth_bytes_per_s / 2,
                  .attention_flop_per_s = rank.flop_per_s / 4,
                  .overhead = truth.overhead};
  const StepCost cost({}, cluster, model.arch);
  for (const bool in_turn : {false, true})
    for (const StepLoad& load : {StepLoad{1, 100, 100, 1}, StepLoad{512, 256, 256, 1}, StepLoad{8, 700, 5600, 8}}) {
      rates.in_turn = rank.efficiency.in_turn = in_turn;
      const double seconds = 3 * cost.block_s(group, 0, load) + cost.ends_s(group, {true, true}, load);
      EXPECT_NEAR(step_s({&rank, 3, load, 0}, rates), seconds, 1e-12 * seconds);
    }
}

TEST(FitLink, FindsTheLinkOfAGroup) {
  const Cluster cluster = d1_cluster();
  const Model model = d1_model();
  const TensorGroup group = make_group(cluster, model.arch, {0, 1}, {}, DType::fp16, DType::fp16, {});
  const StepCost cost({}, cluster, model.arch);
  const PathSpeed link{.latency_s = 40e-6, .bandwidth_bytes_per_s = 1.5e9};
  const double crowding = 1.5;
  const auto timed = [&](const StepLoad& load) {
    TensorGroup linked = group;
    linked.link = link;
    return GroupSample{load, crowding * (4 * cost.block_s(linked, 0, load) + cost.ends_s(linked, {true, true}, load))};
  };
  const PathSpeed found = fit_link(cost, group, 4, crowding, timed({1, 64, 64, 1}), timed({64, 32, 32, 1}));
  EXPECT_NEAR(found.latency_s, link.latency_s, 1e-3 * link.latency_s);
  EXPECT_NEAR(found.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s, 1e-3 * link.bandwidth_bytes_per_s);
}

}  // namespace
}  // namespace motley
