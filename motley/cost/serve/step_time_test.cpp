#include "motley/cost/serve/step_time.hpp"

#include <gtest/gtest.h>

#include <random>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/model/crossing_types.hpp"
#include "motley/model/unlike_layers_test.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

StageTime flat(double tokens_per_s) { return {.measured_tokens_per_s = tokens_per_s}; }

// Whatever a step holds, its time is that of cost/serve/step.hpp: on every stage of the garage (two ranks, one rank;
// with the embedding, the head, or neither).
TEST(StageTime, IsThatOfTheStepCost) {
  ServePlan plan = garage_plan();
  for (DeviceType& type : plan.cluster.types) type.efficiency.elementwise = 0.3;
  const StepTimes times(plan, {});
  const StepCost cost({}, plan.cluster, plan.model.arch);
  std::mt19937_64 random(1);
  const auto pick = [&](double most) { return std::uniform_real_distribution(0.0, most)(random); };
  for (std::size_t route = 0; route < plan.routes.size(); ++route) {
    const RouteChain chain{route, 0, plan.routes[route].path.size()};
    for (std::size_t hop = 0; hop < chain.hops; ++hop) {
      const StageTime time = times.stage(chain, hop);
      const TensorGroup& group = times.group(times.stage_of(chain, hop));
      const auto layers = static_cast<double>(plan.routes[route].path[hop].layers.size());
      for (int i = 0; i < 50; ++i) {
        const StepLoad load{.tokens = 1 + pick(600), .context = pick(4000), .cached = pick(9000), .logits = pick(3)};
        const double expected =
            layers * cost.block_s(group, 0, load) + cost.ends_s(group, {hop == 0, hop + 1 == chain.hops}, load);
        EXPECT_NEAR(time.seconds(load), expected, 1e-12 * expected);
      }
    }
  }
}

// Layers of three kinds, in two ranges: each takes the sum of its own, in the closed form and step by step.
TEST(StageTime, IsASumOverTheKindsOfItsLayers) {
  ServePlan plan = garage_plan();
  const std::int64_t layers = plan.model.arch.layers;
  std::vector<std::uint16_t> kinds;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    kinds.push_back(static_cast<std::uint16_t>(layer < layers / 2 ? 0 : 1 + layer % 2));
  plan.model.arch = with_unlike_layers(plan.model.arch, kinds);
  plan.model.arch.qk_norm = QkNorm::whole;
  const StepTimes times(plan, {});
  const StepCost cost({}, plan.cluster, plan.model.arch);
  const RouteChain chain{0, 0, plan.routes[0].path.size()};
  for (std::size_t hop = 0; hop < chain.hops; ++hop) {
    const LayerRange& held = plan.routes[0].path[hop].layers;
    const TensorGroup& group = times.group(times.stage_of(chain, hop));
    for (const double tokens : {1.0, 7.0, 300.0}) {
      const StepLoad load = cost.windowed({tokens, 500, 500 * tokens, 1}, cost.in_window(500) * tokens);
      double expected = cost.ends_s(group, {hop == 0, hop + 1 == chain.hops}, load);
      for (std::int64_t layer = held.first; layer < held.end; ++layer)
        expected += cost.block_s(group, kinds[static_cast<std::size_t>(layer)], load);
      EXPECT_NEAR(times.stage(chain, hop).seconds(load), expected, 1e-12 * expected);
    }
    const StepLoad one{1, 500, 500, 1, 32, 32};
    EXPECT_GT(cost.block_s(group, 0, one), cost.block_s(group, 2, one)) << "a window is read";
    EXPECT_EQ(cost.norms_s(group, one), all_reduce_s(group, 8)) << "ranks share a norm's sum";
    EXPECT_EQ(cost.routing_s(group, 0, one), 0);
    const double logits_bytes = 4.0 * static_cast<double>(plan.model.arch.kinds[1].experts.count);
    EXPECT_EQ(cost.routing_s(group, 1, one), all_reduce_s(group, logits_bytes)) << "ranks agree on the experts";
    EXPECT_LT(cost.block_s(group, 0, one), cost.block_s(group, 1, {256, 500, 500, 1, 32, 32})) << "all experts are";
  }
  const ServePoint point{100, 20, 1, plan.step};
  const auto form = make_form({}, plan.cluster, plan.model.arch, point);
  double sum = 0;
  for (const Hop& hop : plan.routes[0].path) {
    const TensorGroup& group =
        times.group(times.stage_of(chain, static_cast<std::size_t>(&hop - &plan.routes[0].path[0])));
    const double of_stage = price_stage(*form, {&group, {}, layer_counts(plan.model.arch, hop.layers)}).latency.sum();
    expect_close(form->explain_stage(group, {}, layer_counts(plan.model.arch, hop.layers), "a").value, of_stage);
    sum += of_stage;
  }
  EXPECT_GT(sum, 0);
}

TEST(StageTime, LikeRanksAreOneKind) {
  const ServePlan plan = garage_plan();
  const StepTimes times(plan, {});
  ASSERT_EQ(times.group(0).degree(), 2);
  EXPECT_EQ(times.stage({0, 0, plan.routes[0].path.size()}, 0).ranks.size(), 1u);
}

TEST(StageTime, TokensAtNoCostAreThoseOfTheRankThatComputesFewest) {
  const StageTime stage{.ranks = {{.weights_s = 0.02, .token_s = 0.0002}, {.weights_s = 0.015, .token_s = 0.00025}}};
  EXPECT_DOUBLE_EQ(stage.tokens_at_no_cost().value(), 60);
  EXPECT_DOUBLE_EQ(stage.seconds({.tokens = 60}), stage.seconds({.tokens = 1}));
  EXPECT_FALSE(flat(10).tokens_at_no_cost());
}

TEST(HopTime, IsByTokensOrBySizeOfMessageWhereMeasured) {
  HopTime hop{.small = {0, 1}, .large = {0, 1}, .rate = LinkRate{"a", "b", {1000, 3000}, {10, 20}}};
  EXPECT_DOUBLE_EQ(hop.occupancy_s(7, 2000), 2000 / 15.0);
  hop.tokens_per_s = 14;
  EXPECT_DOUBLE_EQ(hop.occupancy_s(7, 2000), 0.5);
}

TEST(HopTime, TakesTheBytesThatTheHopSends) {
  ServePlan plan = garage_plan();
  const std::int64_t hidden = plan.model.arch.hidden;
  const RouteChain chain{0, 0, 3};
  const HopTime before = StepTimes(plan, {}).hop(chain, 0);
  plan.routes[0].path[0].activation_type = DType::int8;
  const StepTimes times(plan, {});
  EXPECT_EQ(before.token_bytes, static_cast<double>(4 * hidden));
  EXPECT_EQ(times.hop(chain, 0).token_bytes, static_cast<double>(crossing_bytes(DType::int8, hidden)));
  EXPECT_EQ(times.hop(chain, 1).token_bytes, before.token_bytes);
  const auto round_s = [&](const StepTimes& of) { return of.pipelines({chain}).front().span({.tokens = 64}).round_s; };
  EXPECT_LT(round_s(times), round_s(StepTimes(garage_plan(), {})));
}

TEST(PipelineTime, AddsUpStagesHopsAndTheWayBack) {
  const PipelineTime pipeline{.visits = {{.stage = 0, .time = flat(10)}, {.stage = 1, .time = flat(5)}},
                              .crossings = {{.time = {.small = {0.25, 8}, .large = {0.25, 8}, .token_bytes = 2}}},
                              .back_s = 0.125};
  const StepSpan span = pipeline.span({.tokens = 4});
  EXPECT_DOUBLE_EQ(span.busiest_s, 1);  // link: 4 x 2 / 8 s
  EXPECT_DOUBLE_EQ(span.round_s, 0.4 + 0.8 + 1 + 0.25 + 0.125);
  EXPECT_DOUBLE_EQ(pipeline.span({.tokens = 8}).busiest_s, 2);
}

// The next step of the chain comes when those of others have had their part of the time.
TEST(PipelineTime, ASharedStageKeepsAStepForItsShareOfTheTime) {
  const PipelineTime pipeline{
      .visits = {{.stage = 0, .share = 0.25, .time = flat(10)}, {.stage = 1, .time = flat(5)}},
      .crossings = {{.share = 0.5, .time = {.small = {0.25, 8}, .large = {0.25, 8}, .token_bytes = 2}}}};
  const StepSpan span = pipeline.span({.tokens = 4});
  EXPECT_DOUBLE_EQ(span.busiest_s, 2);  // link: 4 x 2 / 8 s, twice
  EXPECT_DOUBLE_EQ(span.round_s, 1.6 + 0.8 + 2 + 0.25);
}

// Two stages of four take the same time. Where a token always takes the same, one stage or link stands for all of them.
TEST(PipelineTime, MergedHasTheSameSpans) {
  const HopTime link{.small = {0.25, 8}, .large = {0.25, 8}, .token_bytes = 2};
  HopTime elsewhere = link;
  elsewhere.to_device = 3;
  const StageTime reads{.ranks = {{.weights_s = 0.5, .token_s = 0.01}}};
  const PipelineTime pipeline{.visits = {{.stage = 0, .share = 0.25, .time = flat(10)},
                                         {.stage = 1, .share = 0.75, .time = reads},
                                         {.stage = 2, .share = 0.75, .time = reads},
                                         {.stage = 3, .share = 0.75, .time = flat(20)}},
                              .crossings = {{.share = 0.75, .time = link}, {.share = 0.5, .time = elsewhere}},
                              .back_s = 0.125};
  const PipelineTime merged = pipeline.merged();
  ASSERT_EQ(merged.visits.size(), 2u);
  EXPECT_EQ(merged.visits[0].stages, 2);
  ASSERT_EQ(merged.crossings.size(), 1u);
  for (const double tokens : {1.0, 16.0, 300.0}) {
    EXPECT_DOUBLE_EQ(merged.span({.tokens = tokens}).busiest_s, pipeline.span({.tokens = tokens}).busiest_s);
    EXPECT_DOUBLE_EQ(merged.span({.tokens = tokens}).round_s, pipeline.span({.tokens = tokens}).round_s);
  }
}

// Two routes of weights 3 and 1 share the last stage, and two others the way to it.
TEST(StepTimes, RoutesShareStagesAndLinksByTheirWeights) {
  ServePlan plan = garage_plan();
  plan.routes[0].weight = 3;
  Route second = plan.routes[0];
  second.id = "second";
  second.weight = 1;
  plan.routes.push_back(second);
  const StepTimes times(plan, {});
  const auto pipelines = times.pipelines({{0, 0, 3}, {1, 1, 2}});
  ASSERT_EQ(pipelines.size(), 2u);
  EXPECT_EQ(pipelines[0].visits[0].share, 1);
  EXPECT_EQ(pipelines[0].visits[1].share, 0.75);
  EXPECT_EQ(pipelines[0].crossings[0].share, 1);
  EXPECT_EQ(pipelines[0].crossings[1].share, 0.75);
  EXPECT_EQ(pipelines[1].visits[0].stage, pipelines[0].visits[1].stage);
  EXPECT_EQ(pipelines[1].visits[1].share, 0.25);
  EXPECT_EQ(pipelines[1].crossings[0].share, 0.25);
  plan.routes[1].weight = 0;
  EXPECT_EQ(StepTimes(plan, {}).pipelines({{0, 0, 3}, {1, 1, 2}})[1].visits[0].share, 1) << "it runs alone";
}

TEST(AddSequence, AddsUpWhatAStepHolds) {
  StepLoad load;
  add_sequence(load, 0, 10, 4, false);  // four tokens of a prompt behind ten others
  add_sequence(load, 0, 20, 1, true);
  EXPECT_DOUBLE_EQ(load.tokens, 5);
  EXPECT_DOUBLE_EQ(load.context, (4 * 12 + 20.5) / 5);
  EXPECT_DOUBLE_EQ(load.cached, 12 + 20.5);
  EXPECT_DOUBLE_EQ(load.logits, 1);
  StepLoad windowed;
  add_sequence(windowed, 16, 20, 1, true);
  EXPECT_DOUBLE_EQ(windowed.cached, 20.5);
  EXPECT_DOUBLE_EQ(windowed.window_cached, 16) << "in layers with a window";
  EXPECT_DOUBLE_EQ(windowed.window_context, 16);
}

}  // namespace
}  // namespace motley
