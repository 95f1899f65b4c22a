#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/report/html_curve.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/page_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;
using testing::Not;

TrainRun small_run() {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/cluster.toml");
  plan.workload.training = Training{.sequence_length = 64, .global_batch = 8, .states = {}};
  plan.replicas = {{.share = 1,
                    .micro_batches = 2,
                    .stages = {{.layers = {0, 8}, .devices = {"laptop/0"}, .strategies = {{.layers = {0, 8}}}}}}};
  plan.predicted = {.iteration_s = 0.5, .tokens_per_s = 1024, .mfu = 0.5, .iteration_s_range = {}, .memory_bytes = {}};
  TrainRun run;
  run.record = {.model = "/models/<b>", .data = "/data/tales.jsonl", .steps = 5, .total_steps = 5, .plan = write(plan)};
  run.metrics = {
      {.step = 1, .loss = 8, .grad_norm = 4, .learning_rate = 1e-3, .tokens = 500, .seconds = 9},
      {.step = 3, .loss = 6, .grad_norm = 2, .learning_rate = 1e-3, .tokens = 500, .seconds = 1, .eval_loss = 5.5},
      {.step = 4, .loss = 4, .grad_norm = 1, .learning_rate = 1e-3, .tokens = 500, .seconds = 1, .eval_loss = 5.75}};
  const std::vector<TimelinePass> passes = {{0, false, 0, 0.1}, {0, true, 0.1, 0.3}};
  run.timeline =
      StepTimeline{.step = 4,
                   .seconds = 1,
                   .predicted_s = 0.5,
                   .workers = {{.device = "laptop/0", .passes = passes, .exchange = {0.3, 0.4}, .update = {0.4, 1}}},
                   .predicted = {{.device = {}, .passes = passes, .exchange = {0.3, 0.4}, .update = {0.4, 0.5}}}};
  return run;
}

TEST(RunPage, HasTheRunsFigures) {
  const TrainRun run = small_run();
  const std::string page = html_report(run);
  EXPECT_EQ(nesting_error(page), "");
  for (const char* part : {"id=\"curves\"", "id=\"figures\"", "id=\"timeline\"", "loss: 8 in step 1, 4 in step 4",
                           "validation loss 5.5 after step 3", "4 of 5, of which 1 were skipped",
                           "5.7500 after step 4; lowest: 5.5000 after step 3", "/models/&lt;b&gt;",
                           "Step 4 took 1.00 s; cost form motley predicts 500 ms", "<b>r0/s0</b> predicted",
                           "r0/s0 laptop/0: passes 300 ms, 30% of the step; gradients 100 ms, update 600 ms"})
    EXPECT_THAT(page, HasSubstr(part));
  // The median step took twice the predicted time.
  for (const char* cells :
       {"<td>one step (median)</td><td class=\"n\">1.00 s</td><td class=\"n\">500 ms</td><td class=\"n\">2.00</td>",
        "<td>tokens/s</td><td class=\"n\">512</td><td class=\"n\">1024</td><td class=\"n\">0.50</td>",
        "<td>MFU</td><td class=\"n\">25%</td><td class=\"n\">50%</td><td class=\"n\">0.50</td>"})
    EXPECT_THAT(page, HasSubstr(cells));
  EXPECT_EQ(page, html_report(run));
}

TEST(RunPage, DoesWithoutTimelineAndValidation) {
  TrainRun run = small_run();
  run.timeline.reset();
  for (StepMetrics& step : run.metrics) step.eval_loss.reset();
  const std::string page = html_report(run);
  EXPECT_EQ(nesting_error(page), "");
  EXPECT_THAT(page, Not(HasSubstr("id=\"timeline\"")));
  EXPECT_THAT(page, Not(HasSubstr("validation loss")));
}

TEST(RunPage, ALongRunStaysLight) {
  TrainRun run = small_run();
  const StepMetrics like = run.metrics.back();
  run.metrics.clear();
  for (int step = 1; step <= 100'000; ++step) run.metrics.emplace_back(like).step = step;
  EXPECT_LT(html_report(run).size(), 100'000U);
}

TEST(Curves, SpanTheDrawing) {
  const std::string text =
      curve_drawing({{.name = "loss", .css_class = "c0", .points = {{1, 10}, {2, 20}, {4, 0}}}}, 4, false, "words")
          .markup();
  EXPECT_THAT(text, HasSubstr("d=\"M250 500L500 0L1000 1000\""));
  EXPECT_THAT(text, HasSubstr(">15</text>"));
}

TEST(Curves, BeginAtZeroWhereTheyShall) {
  const std::vector<Curve> flat = {{.name = "rate", .points = {{1, 4}, {2, 4}}}};
  EXPECT_THAT(curve_drawing(flat, 2, true, "").markup(), HasSubstr(">0</text>"));
  EXPECT_THAT(curve_drawing(flat, 2, false, "").markup(), Not(HasSubstr(">0</text>")));
  EXPECT_TRUE(curve_drawing({{.name = "none"}}, 2, true, "").empty());
}

TEST(Curves, ManyPointsBecomeMeans) {
  Curve curve{.name = "loss"};
  for (int i = 0; i < 1000; ++i) curve.points.push_back({i + 1.0, i % 2 == 0 ? 0.0 : 2.0});
  const std::string text = curve_drawing({curve}, 1000, false, "").markup();
  EXPECT_EQ(std::count(text.begin(), text.end(), 'L'), 333);  // means of three
}

}  // namespace
}  // namespace motley
