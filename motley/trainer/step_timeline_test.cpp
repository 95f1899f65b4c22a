#include "motley/trainer/step_timeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/train/train_price.hpp"

namespace motley {
namespace {

// Two stages, the second of two ranks.
TrainPlan small_plan() {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/cluster.toml");
  plan.workload.training = Training{.sequence_length = 64, .global_batch = 8, .states = {}};
  plan.replicas = {
      {.share = 1,
       .micro_batches = 2,
       .stages = {{.layers = {0, 4}, .devices = {"laptop/0"}, .strategies = {{.layers = {0, 4}}}},
                  {.layers = {4, 8}, .devices = {"bench/0", "bench/1"}, .strategies = {{.layers = {4, 8}, .tp = 2}}}}}};
  return plan;
}

std::vector<TrainStepDone> answers() {
  std::vector<TrainStepDone> all;
  for (int i = 0; i < 3; ++i)
    all.push_back({.step = 7,
                   .busy_s = 0.4,
                   .exchange_s = 0.25,
                   .update_s = 0.125,
                   .passes = {{0, TrainPass::Way::forward, 0.1 * i, 0.1}, {0, TrainPass::Way::backward, 0.2, 0.4}}});
  return all;
}

TEST(StepTimeline, HasALaneForEachWorkerAndAPredictedOneForEachStage) {
  const TrainPlan plan = small_plan();
  const StepTimeline timeline = step_timeline(plan, {.step = 7, .seconds = 0.8}, answers());
  EXPECT_EQ(timeline.step, 7);
  EXPECT_EQ(timeline.seconds, 0.8);

  ASSERT_EQ(timeline.workers.size(), 3U);
  EXPECT_EQ(timeline.workers[0].device, "laptop/0");
  EXPECT_EQ(timeline.workers[2].device, "bench/1");
  EXPECT_EQ(timeline.workers[2].stage, 1);
  EXPECT_EQ(timeline.workers[2].passes, (std::vector<TimelinePass>{{0, false, 0.1 * 2, 0.1}, {0, true, 0.2, 0.4}}));
  EXPECT_EQ(timeline.workers[2].exchange, (TimelineSpan{0.4, 0.65}));
  EXPECT_EQ(timeline.workers[2].update, (TimelineSpan{0.65, 0.775}));

  const TrainStepPrice price = price_step(plan, {.form = "motley"});
  EXPECT_EQ(timeline.predicted_s, price.iteration_s);
  ASSERT_EQ(timeline.predicted.size(), 2U);
  for (std::size_t s = 0; s < 2; ++s) {
    const TimelineLane& lane = timeline.predicted[s];
    EXPECT_EQ(lane.stage, static_cast<std::int64_t>(s));
    EXPECT_EQ(lane.device, "");
    ASSERT_EQ(lane.passes.size(), 4U);  // two micro-batches, there and back
    double busy_s = 0;
    for (const TimelinePass& pass : lane.passes) busy_s += pass.end_s - pass.start_s;
    EXPECT_NEAR(busy_s, price.pipelines[0].busy_s[s], 1e-9 * busy_s);
    EXPECT_GE(lane.exchange.start_s, lane.passes.back().end_s);
    EXPECT_EQ(lane.update.end_s, price.iteration_s);
  }
}

TEST(StepTimeline, TellsGradientsOfWeightsThatHaveWaited) {
  TrainPlan plan = small_plan();
  plan.schedule = PipelineSchedule::zb_h1;
  std::vector<TrainStepDone> done = answers();
  done[1].passes.push_back({0, TrainPass::Way::backward, 0.4, 0.5});
  const StepTimeline timeline = step_timeline(plan, {.step = 7, .seconds = 0.8}, done);
  EXPECT_EQ(timeline.workers[1].passes,
            (std::vector<TimelinePass>{{0, false, 0.1, 0.1}, {0, true, 0.2, 0.4}, {0, true, 0.4, 0.5, true}}));
  ASSERT_EQ(timeline.predicted.at(1).passes.size(), 6U);
  EXPECT_EQ(std::ranges::count(timeline.predicted[1].passes, true, &TimelinePass::weights), 2);
  EXPECT_EQ(std::ranges::count(timeline.predicted[0].passes, true, &TimelinePass::weights), 0);
}

TEST(StepTimeline, ComesBackFromItsFile) {
  const StepTimeline timeline = step_timeline(small_plan(), {.step = 7, .seconds = 0.8}, answers());
  EXPECT_EQ(read<StepTimeline>(parse_json(to_json(write(timeline)), "timeline.json"), "timeline.json"), timeline);
}

// A plan without figures for its devices can run all the same.
TEST(StepTimeline, IsWithoutPredictionWhereThePlanHasNoPrice) {
  TrainPlan plan = small_plan();
  for (auto& type : plan.cluster.types) type.flop_per_s.clear();
  const StepTimeline timeline = step_timeline(plan, {.step = 7, .seconds = 0.8}, answers());
  EXPECT_EQ(timeline.workers.size(), 3U);
  EXPECT_TRUE(timeline.predicted.empty());
  EXPECT_EQ(timeline.predicted_s, 0);
}

}  // namespace
}  // namespace motley
