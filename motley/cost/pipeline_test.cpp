#include "motley/cost/pipeline.hpp"

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

double makespan(PipelineSchedule schedule, const std::vector<double>& seconds, std::int64_t micro_batches) {
  return run_pipeline(schedule, stages_of(seconds), micro_batches).makespan_s;
}

constexpr auto gpipe = PipelineSchedule::gpipe, one_f_one_b = PipelineSchedule::one_forward_one_backward;

TEST(Pipeline, HandCases) {
  EXPECT_NEAR(makespan(gpipe, {1, 10, 1}, 8), 82, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, {1, 10, 1}, 8), 81, 1e-9);
  EXPECT_NEAR(makespan(gpipe, {3, 3, 3, 3}, 8), 33, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, {3, 3, 3, 3}, 8), 33, 1e-9);
  EXPECT_NEAR(makespan(one_f_one_b, {5}, 7), 35, 1e-9);
}

TEST(Pipeline, HopsOverlapWithComputeAndWaitForTheirLink) {
  // One micro-batch: 1 + 4 + 2, back 4 + 5 + 2.
  const std::vector<PipelineStage> stages = {{1, 2, 4, 0}, {2, 4, 0, 5}};
  EXPECT_DOUBLE_EQ(run_pipeline(gpipe, stages, 1).makespan_s, 18);
  // Three: the link is busy until 1 + 3 * 4 = 13; stage 1 ends its forward passes at 15 and its backward passes at 19,
  // 23, 27; the gradients arrive at 24, 29, 34 and stage 0 ends at 36.
  EXPECT_DOUBLE_EQ(run_pipeline(gpipe, stages, 3).makespan_s, 36);
}

TEST(Pipeline, PassesAreThoseOfTheSchedule) {
  std::vector<PipelinePass> passes;
  const PipelineTimes times = run_pipeline(one_f_one_b, stages_of({3, 3}), 3, &passes);
  EXPECT_EQ(passes.size(), 12u);
  EXPECT_EQ(times.busy_s, (std::vector<double>{9, 9}));
  std::vector<PipelinePass> first;
  std::copy_if(passes.begin(), passes.end(), std::back_inserter(first), [](const auto& p) { return p.stage == 0; });
  std::string order;
  for (const auto& pass : first) order += (pass.backward ? 'B' : 'F') + std::to_string(pass.micro_batch);
  EXPECT_EQ(order, "F0F1B0F2B1B2");
}

RC_GTEST_PROP(Pipeline, GpipeIsTheFlowShopAndNothingBeatsTheBottleneck, ()) {
  const auto units = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 20)));
  const auto micro_batches = *rc::gen::inRange<std::int64_t>(1, 12);
  std::vector<double> seconds(units.begin(), units.end());
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const double most = *std::max_element(seconds.begin(), seconds.end());
  const double flow_shop = sum + static_cast<double>(micro_batches - 1) * most;
  RC_ASSERT(std::abs(makespan(gpipe, seconds, micro_batches) - flow_shop) < 1e-9 * flow_shop);
  const double interleaved = makespan(one_f_one_b, seconds, micro_batches);
  RC_ASSERT(interleaved >= static_cast<double>(micro_batches) * most - 1e-9);
}

}  // namespace
}  // namespace motley
