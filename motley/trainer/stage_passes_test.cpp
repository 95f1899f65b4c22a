#include "motley/trainer/layout/stage_passes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "motley/cost/train/pipeline.hpp"

namespace motley {
namespace {

constexpr auto schedules = {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward,
                            PipelineSchedule::zb_h1};

std::string text(const std::vector<StagePass>& passes) {
  std::string all;
  for (const StagePass& pass : passes) all += fmt::format("{}{} ", name_of(pass.kind)[0], pass.micro_batch);
  return all;
}

TEST(StagePasses, ByHand) {
  EXPECT_EQ(text(stage_passes(PipelineSchedule::gpipe, 0, 2, 3)), "f0 f1 f2 b0 b1 b2 ");
  const auto one_f_one_b = PipelineSchedule::one_forward_one_backward;
  EXPECT_EQ(text(stage_passes(one_f_one_b, 0, 3, 4)), "f0 f1 f2 b0 f3 b1 b2 b3 ");
  EXPECT_EQ(text(stage_passes(one_f_one_b, 1, 3, 4)), "f0 f1 b0 f2 b1 f3 b2 b3 ");
  EXPECT_EQ(text(stage_passes(one_f_one_b, 2, 3, 4)), "f0 b0 f1 b1 f2 b2 f3 b3 ");
  EXPECT_EQ(text(stage_passes(one_f_one_b, 0, 4, 2)), "f0 f1 b0 b1 ");
  const auto zb_h1 = PipelineSchedule::zb_h1;
  EXPECT_EQ(text(stage_passes(zb_h1, 0, 3, 4)), "f0 f1 f2 b0 f3 b1 b2 b3 ");
  EXPECT_EQ(text(stage_passes(zb_h1, 1, 3, 4)), "f0 f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3 ");
  EXPECT_EQ(text(stage_passes(zb_h1, 2, 3, 4)), "f0 b0 f1 b1 f2 b2 w0 f3 b3 w1 w2 w3 ");
  EXPECT_EQ(text(stage_passes(zb_h1, 2, 3, 2)), "f0 b0 f1 b1 w0 w1 ");
}

TEST(StagePasses, HoldAsManyMicroBatchesAsThePlanCounts) {
  for (const auto schedule : schedules)
    for (std::size_t stages = 1; stages <= 6; ++stages)
      for (std::int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches)
        for (std::size_t stage = 0; stage < stages; ++stage) {
          const bool lags = weight_lag(schedule, stage) > 0;
          std::int64_t in_flight = 0, waiting = 0, most_in_flight = 0, most = 0;
          for (const StagePass& pass : stage_passes(schedule, stage, stages, micro_batches)) {
            in_flight += pass.kind == PassKind::forward ? 1 : pass.kind == PassKind::backward ? -1 : 0;
            if (lags) waiting += pass.kind == PassKind::backward ? 1 : pass.kind == PassKind::weights ? -1 : 0;
            most_in_flight = std::max(most_in_flight, in_flight);
            most = std::max(most, in_flight + waiting);
          }
          EXPECT_EQ(in_flight + waiting, 0);
          const std::int64_t planned = micro_batches_in_flight(schedule, stage, stages, micro_batches);
          EXPECT_EQ(most_in_flight, planned);
          EXPECT_EQ(most, planned + micro_batches_waiting(schedule, stage, stages, micro_batches));
        }
}

// The order that the price was found with, whatever the stages' times.
TEST(StagePasses, AreThoseOfThePrice) {
  for (const auto schedule : schedules)
    for (std::size_t stages = 1; stages <= 4; ++stages)
      for (std::int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
        PipelineLoad load{.stages = {}, .micro_batches = micro_batches};
        for (std::size_t s = 0; s < stages; ++s)
          load.stages.push_back(
              {.forward_s = 1.0 + static_cast<double>(s * 7 % 3), .backward_s = 2.0, .weights_s = s > 0 ? 0.5 : 0});
        std::vector<PipelinePass> priced;
        run_pipelines(schedule, {load}, &priced);
        for (std::size_t stage = 0; stage < stages; ++stage) {
          std::vector<StagePass> order;
          for (const PipelinePass& pass : priced)
            if (pass.stage == stage) order.push_back({pass.micro_batch, pass.kind});
          EXPECT_EQ(order, stage_passes(schedule, stage, stages, micro_batches));
        }
      }
}

// Every stage runs its list in order and waits for nothing but the rows that it reads: with sends that do not wait
// all lists come to their ends.
TEST(StagePasses, NeverWaitForEachOther) {
  for (const auto schedule : schedules)
    for (std::size_t stages = 1; stages <= 6; ++stages)
      for (std::int64_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
        std::vector<std::vector<StagePass>> lists;
        for (std::size_t s = 0; s < stages; ++s) lists.push_back(stage_passes(schedule, s, stages, micro_batches));
        std::vector<std::size_t> done(stages, 0);
        const auto has_run = [&](std::size_t stage, const StagePass& pass) {
          const auto end = lists[stage].begin() + static_cast<std::ptrdiff_t>(done[stage]);
          return std::find(lists[stage].begin(), end, pass) != end;
        };
        for (bool moved = true; moved;) {
          moved = false;
          for (std::size_t s = 0; s < stages; ++s) {
            if (done[s] == lists[s].size()) continue;
            const StagePass& next = lists[s][done[s]];
            const bool ready = next.kind == PassKind::forward   ? s == 0 || has_run(s - 1, next)
                               : next.kind == PassKind::weights ? has_run(s, {next.micro_batch, PassKind::backward})
                                                                : s + 1 == stages || has_run(s + 1, next);
            done[s] += ready ? 1 : 0;
            moved = moved || ready;
          }
        }
        for (std::size_t s = 0; s < stages; ++s) EXPECT_EQ(done[s], lists[s].size());
      }
}

}  // namespace
}  // namespace motley
