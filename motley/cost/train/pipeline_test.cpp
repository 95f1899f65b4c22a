#include "motley/cost/train/pipeline.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace motley {
namespace {

// Forward to backward as 1 to 2, no hops.
std::vector<PipelineStage> stages_of(const std::vector<double>& seconds) {
  std::vector<PipelineStage> stages;
  for (const double c : seconds) stages.push_back({.forward_s = c / 3, .backward_s = 2 * c / 3});
  return stages;
}

std::vector<double> seconds(std::vector<double> of_stages) { return of_stages; }

double makespan(PipelineSchedule schedule, std::vector<PipelineStage> stages, std::int64_t micro_batches) {
  return run_pipelines(schedule, {{std::move(stages), micro_batches}}).front().makespan_s;
}
double makespan(PipelineSchedule schedule, const std::vector<double>& seconds, std::int64_t micro_batches) {
  return makespan(schedule, stages_of(seconds), micro_batches);
}

constexpr auto gpipe = PipelineSchedule::gpipe, one_f_one_b = PipelineSchedule::one_forward_one_backward,
               zb_h1 = PipelineSchedule::zb_h1;

TEST(Pipeline, HandCases) {
  EXPECT_NEAR(makespan(gpipe, seconds({1, 10, 1}), 8), 82, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, seconds({1, 10, 1}), 8), 81, 1e-9);
  EXPECT_NEAR(makespan(gpipe, seconds({3, 3, 3, 3}), 8), 33, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, seconds({3, 3, 3, 3}), 8), 33, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, seconds({5}), 7), 35, 1e-9);
}

TEST(Pipeline, HopsOverlapWithComputeAndWaitForTheirLink) {
  // One micro-batch: 1 + 4 + 2, back 4 + 5 + 2.
  const std::vector<PipelineStage> stages = {{1, 2, {4, 0}, {}}, {2, 4, {}, {5, 0}}};
  EXPECT_DOUBLE_EQ(makespan(gpipe, stages, 1), 18);
  // Three: the link is busy until 1 + 3 * 4 = 13; stage 1 ends its forward passes at 15 and its backward passes at 19,
  // 23, 27; the gradients arrive at 24, 29, 34 and stage 0 ends at 36.
  EXPECT_DOUBLE_EQ(makespan(gpipe, stages, 3), 36);
  // Latency does not occupy a link: the messages arrive at 1 + 1 + 3, 6, 7, one after the other.
  EXPECT_DOUBLE_EQ(makespan(gpipe, {{1, 2, {1, 3}, {}}, {1, 1, {}, {}}}, 3), 8 + 1 + 3 * 2);
}

// Stage 1 has its gradient ready at 1 + 1 + 2 - 1; stage 0 then runs during the rest of stage 1's pass.
TEST(Pipeline, GradientsOfWeightsKeepNoOtherStageWaiting) {
  const std::vector<PipelineStage> stages = {{1, 2, {}, {}}, {1, 2, {}, {}, 1}};
  EXPECT_DOUBLE_EQ(makespan(one_f_one_b, stages, 1), 3 + 2);
  EXPECT_DOUBLE_EQ(run_pipelines(one_f_one_b, {{stages, 1, HopMode::blocking}}).front().makespan_s, 4 + 2);
  // Stage 1: F0 until 2, B0 until 4 (sent at 3), F1 until 5, B1 until 7 (sent at 6). Stage 0: B0 until 5, B1 until 8.
  EXPECT_DOUBLE_EQ(makespan(one_f_one_b, stages, 2), 8);
  EXPECT_EQ(run_pipelines(one_f_one_b, {{stages, 2}}).front().busy_s, (std::vector<double>{6, 6}));
  // The link carries 2 seconds for each: the first from 3 to 5, the second from 6 to 8.
  EXPECT_DOUBLE_EQ(makespan(one_f_one_b, {{1, 2, {}, {}}, {1, 2, {}, {2, 0}, 1}}, 2), 10);
}

std::string order_of(const std::vector<PipelinePass>& passes, std::size_t stage) {
  std::string order;
  for (const PipelinePass& pass : passes)
    if (pass.stage == stage) order += fmt::format("{}{}@{} ", name_of(pass.kind)[0], pass.micro_batch, pass.start_s);
  return order;
}

// By hand; 11 seconds under 1F1B, whose last gradient reaches stage 0 at 9.
TEST(Pipeline, GradientsOfWeightsThatWaitFillThePauses) {
  const std::vector<PipelineStage> stages = {{1, 2, {}, {}}, {1, 2, {}, {}, 1}};
  std::vector<PipelinePass> passes;
  const PipelineTimes times = run_pipelines(zb_h1, {{stages, 3}}, &passes).front();
  EXPECT_EQ(order_of(passes, 0), "f0@0 f1@1 b0@3 f2@5 b1@6 b2@8 ");
  EXPECT_EQ(order_of(passes, 1), "f0@1 b0@2 f1@3 b1@4 w0@5 f2@6 b2@7 w1@8 w2@9 ");
  EXPECT_DOUBLE_EQ(times.makespan_s, 10);
  EXPECT_EQ(times.busy_s, (std::vector<double>{9, 9}));
  EXPECT_EQ(times.gradients_complete_s, (std::vector<double>{10, 10}));
  EXPECT_DOUBLE_EQ(makespan(one_f_one_b, stages, 3), 11);
}

// (S - 1) (F + B - W), in place of (S - 1) (F + B) where the input's gradient alone goes first.
TEST(Pipeline, ZbH1HasThePublishedBubble) {
  for (std::size_t count = 1; count <= 4; ++count)
    for (auto micro_batches = static_cast<std::int64_t>(count); micro_batches <= 8; ++micro_batches) {
      std::vector<PipelineStage> stages(count, {1, 2, {}, {}, 1});
      const double work_s = 3 * static_cast<double>(micro_batches), gaps = static_cast<double>(count) - 1;
      EXPECT_DOUBLE_EQ(makespan(zb_h1, stages, micro_batches), work_s + gaps);
      EXPECT_DOUBLE_EQ(makespan(one_f_one_b, stages, micro_batches), work_s + 2 * gaps);
    }
}

TEST(Pipeline, BlockingHopsKeepBothEndsBusy) {
  const std::vector<PipelineStage> stages = {{1, 2, {4, 0}, {}}, {2, 4, {}, {5, 0}}};
  const auto blocked = [&](PipelineSchedule schedule, std::int64_t micro_batches) {
    return run_pipelines(schedule, {{stages, micro_batches, HopMode::blocking}}).front().makespan_s;
  };
  EXPECT_DOUBLE_EQ(blocked(gpipe, 1), 18);
  // Forward passes of stage 1 end at 7, 13, 19: the next message leaves when it has computed with the last. Backward
  // passes at 23, 32, 41, each sent before the next begins.
  EXPECT_DOUBLE_EQ(blocked(gpipe, 3), 48);
  // Stage 0: F0, sent until 5, F1 until 6. Stage 1: F0, B0 until 11; its gradient or F1's output goes first, then the
  // other, until 20; B0 of stage 0 hides behind F1, B1 of stage 1 until 26, sent until 31.
  EXPECT_DOUBLE_EQ(blocked(one_f_one_b, 2), 33);
}

TEST(Pipeline, PipelinesShareLinks) {
  const std::vector<PipelineStage> stages = {{1, 1, {4, 0, 7}, {}}, {1, 1, {}, {1, 0, 8}}};
  const auto alone = run_pipelines(gpipe, {{stages, 1}});
  EXPECT_DOUBLE_EQ(alone[0].makespan_s, 1 + 4 + 1 + 1 + 1 + 1);
  const auto both = run_pipelines(gpipe, {{stages, 1}, {stages, 1}});
  EXPECT_DOUBLE_EQ(both[0].makespan_s, 9);
  EXPECT_DOUBLE_EQ(both[1].makespan_s, 9 + 4);
  // A stage that blocks for a message waits for the link, too.
  const auto blocked = run_pipelines(gpipe, {{stages, 1, HopMode::blocking}, {stages, 1, HopMode::blocking}});
  EXPECT_DOUBLE_EQ(blocked[0].makespan_s, 9);
  EXPECT_DOUBLE_EQ(blocked[1].makespan_s, 9 + 4);
}

TEST(Pipeline, PassesAreThoseOfTheSchedule) {
  std::vector<PipelinePass> passes;
  const PipelineTimes times = run_pipelines(one_f_one_b, {{stages_of({3, 3}), 3}}, &passes).front();
  EXPECT_EQ(passes.size(), 12u);
  EXPECT_EQ(times.busy_s, (std::vector<double>{9, 9}));
  EXPECT_EQ(order_of(passes, 0), "f0@0 f1@1 b0@4 f2@6 b1@7 b2@10 ");
}

// Way to stage 1 and back 3 + 2, the whole way 8. Stage 0 has two of four micro-batches in flight: the third leaves at
// 8, reaches stage 1 and comes back in 5 seconds, and there two take 6.
TEST(LeastMakespan, ByHand) {
  const std::vector<PipelineStage> stages = {{1, 2, {1, 0}, {}}, {1, 2, {}, {0.5, 0.5}}};
  EXPECT_DOUBLE_EQ(least_makespan_s(one_f_one_b, {stages, 4}), 8 + 5 + 6);
  EXPECT_DOUBLE_EQ(makespan(one_f_one_b, stages, 4), 19);
  EXPECT_DOUBLE_EQ(least_makespan_s(gpipe, {stages, 4}), 5 + 12);
  EXPECT_DOUBLE_EQ(least_makespan_s(one_f_one_b, {stages_of({5}), 7}), 35);
}

RC_GTEST_PROP(LeastMakespan, NoRunIsShorter, ()) {
  const auto second = rc::gen::map(rc::gen::inRange(0, 20), [](int units) { return static_cast<double>(units); });
  const auto schedule = *rc::gen::element(gpipe, one_f_one_b, zb_h1);
  const auto hops = *rc::gen::element(HopMode::overlapped, HopMode::blocking);
  std::vector<PipelineLoad> loads;
  for (int count = *rc::gen::inRange(1, 4); count > 0; --count) {
    PipelineLoad& load = loads.emplace_back();
    load.hops = hops;
    load.micro_batches = *rc::gen::inRange<std::int64_t>(1, 20);
    for (int stages = *rc::gen::inRange(1, 6); stages > 0; --stages) {
      const double weights_s = *second;
      const PipelineHop send = {*second, *second, *rc::gen::inRange(-1, 2)};
      load.stages.push_back({1 + *second, 1 + *second + weights_s, send, {*second, 0}, weights_s});
    }
  }
  const auto times = run_pipelines(schedule, loads);
  for (std::size_t p = 0; p < loads.size(); ++p)
    RC_ASSERT(times[p].makespan_s >= least_makespan_s(schedule, loads[p]) - 1e-9);
}

RC_GTEST_PROP(Pipeline, GpipeIsTheFlowShopAndNothingBeatsTheBottleneck, ()) {
  const auto units = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 20)));
  const auto micro_batches = *rc::gen::inRange<std::int64_t>(1, 12);
  const std::vector<double> of_stages(units.begin(), units.end());
  const double sum = std::accumulate(of_stages.begin(), of_stages.end(), 0.0);
  const double most = *std::max_element(of_stages.begin(), of_stages.end());
  const double flow_shop = sum + static_cast<double>(micro_batches - 1) * most;
  RC_ASSERT(std::abs(makespan(gpipe, of_stages, micro_batches) - flow_shop) < 1e-9 * flow_shop);
  const double interleaved = makespan(one_f_one_b, of_stages, micro_batches);
  RC_ASSERT(interleaved >= static_cast<double>(micro_batches) * most - 1e-9);
}

RC_GTEST_PROP(Pipeline, BlockingNeitherLocksUpNorHelps, ()) {
  const auto second = rc::gen::map(rc::gen::inRange(0, 20), [](int units) { return static_cast<double>(units); });
  PipelineLoad load;
  for (int count = *rc::gen::inRange(1, 7); count > 0; --count)
    load.stages.push_back({1 + *second, 1 + *second, {*second, *second}, {*second, *second}});
  load.micro_batches = *rc::gen::inRange<std::int64_t>(1, 12);
  const auto schedule = *rc::gen::element(gpipe, one_f_one_b, zb_h1);
  if (schedule == zb_h1)
    for (PipelineStage& stage : load.stages) stage.weights_s = stage.backward_s / 2;
  const double overlapped = run_pipelines(schedule, {load}).front().makespan_s;
  load.hops = HopMode::blocking;
  RC_ASSERT(run_pipelines(schedule, {load}).front().makespan_s >= overlapped - 1e-9);
}

}  // namespace
}  // namespace motley
