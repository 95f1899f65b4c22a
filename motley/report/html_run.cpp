// The page of a training run.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "motley/base/units.hpp"
#include "motley/cost/train/train_cost.hpp"
#include "motley/report/html_curve.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"
#include "motley/report/html_timeline.hpp"
#include "motley/report/table.hpp"
#include "motley/report/train_report.hpp"

namespace motley {
namespace {

constexpr std::size_t run_lanes_drawn = 48;  // predicted ones and workers'

double batch_tokens(const TrainPlan& plan) {
  const Training& training = training_of(plan.workload);
  return static_cast<double>(training.global_batch * training.sequence_length);
}

// A plan that was written by hand has none of its own.
TrainPrediction prediction_of(const TrainPlan& plan) {
  if (plan.predicted.iteration_s > 0) return plan.predicted;
  try {
    const TrainCost cost = price_train(plan, {.form = "motley"});
    return {.iteration_s = cost.iteration_s,
            .tokens_per_s = cost.tokens_per_s,
            .mfu = cost.mfu,
            .iteration_s_range = {},
            .memory_bytes = {}};
  } catch (const Error&) {  // such as a device without figures
    return {};
  }
}

double median_step_s(const TrainRun& run) {
  std::vector<double> seconds;
  for (const StepMetrics& step : run.metrics) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

const StepMetrics* last_validated(const TrainRun& run) {
  const auto found = std::find_if(run.metrics.rbegin(), run.metrics.rend(),
                                  [](const StepMetrics& step) { return step.eval_loss.has_value(); });
  return found == run.metrics.rend() ? nullptr : &*found;
}

Html head(const TrainRun& run, const TrainPlan& plan) {
  const StepMetrics& last = run.metrics.back();
  const double step_s = median_step_s(run);
  const TrainPrediction predicted = prediction_of(plan);
  std::vector<PageFigure> list = {{"steps", fmt::format("{}", last.step), fmt::format("of {}", run.record.steps)},
                                  {"training loss", fmt::format("{:.4f}", last.loss), "of the newest step"}};
  if (const StepMetrics* validated = last_validated(run))
    list.push_back({"validation loss", fmt::format("{:.4f}", *validated->eval_loss),
                    fmt::format("after step {}", validated->step)});
  list.push_back({"one step", human_seconds(step_s),
                  predicted.iteration_s > 0 ? "median; predicted " + human_seconds(predicted.iteration_s) : "median"});
  list.push_back({"tokens", short_figure(batch_tokens(plan) / step_s) + "/s", ""});
  if (predicted.mfu > 0)
    list.push_back(
        {"MFU", percent(predicted.mfu * predicted.iteration_s / step_s), "of the peak of the devices in use"});
  return {paragraph("lead", train_plan_summary(plan) + "."), figures(list)};
}

// ---- curves ----

using FigureOf = double (*)(const StepMetrics& step, double batch_tokens);

Curve curve_of(const TrainRun& run, const TrainPlan& plan, std::string name, FigureOf figure_of) {
  Curve curve{.name = std::move(name), .css_class = "c0"};
  for (const StepMetrics& step : run.metrics)
    curve.points.push_back({static_cast<double>(step.step), figure_of(step, batch_tokens(plan))});
  return curve;
}

Html curves(const TrainRun& run, const TrainPlan& plan) {
  const auto end = static_cast<double>(run.metrics.back().step);
  std::vector<ChartRow> rows;
  const auto add = [&](std::vector<Curve> list, bool from_zero) {
    const Curve& first = list.front();
    const double begun = first.points.front().y, newest = first.points.back().y;
    const std::string words = fmt::format("{}: {:.4g} in step {:.0f}, {:.4g} in step {:.0f}", first.name, begun,
                                          first.points.front().x, newest, first.points.back().x);
    rows.push_back({.label = tag("b", {}, first.name),
                    .drawing = curve_drawing(list, end, from_zero, words),
                    .figure = tag("b", {}, fmt::format("{:.4g}", newest))});
  };
  Curve validation{.name = "validation loss", .css_class = "c1", .dots = true};
  for (const StepMetrics& step : run.metrics)
    if (step.eval_loss) validation.points.push_back({static_cast<double>(step.step), *step.eval_loss});
  const bool validated = !validation.points.empty();
  add({curve_of(run, plan, "loss", [](const StepMetrics& step, double) { return step.loss; }), std::move(validation)},
      false);
  add({curve_of(run, plan, "learning rate", [](const StepMetrics& step, double) { return step.learning_rate; })}, true);
  add({curve_of(run, plan, "gradient norm", [](const StepMetrics& step, double) { return step.grad_norm; })}, true);
  add({curve_of(run, plan, "tokens/s", [](const StepMetrics& step, double tokens) { return tokens / step.seconds; })},
      true);
  rows.push_back(axis_row(count_axis(end)));
  Html content;
  if (validated) content = legend({{"c0 fill", "training loss of each step"}, {"c1 fill", "validation loss (dots)"}});
  return {content, chart(rows), paragraph("note", "Over steps. The gradient norm is that before clipping.")};
}

// ---- figures ----

Html speed_table(const TrainRun& run, const TrainPlan& plan) {
  const TrainPrediction predicted = prediction_of(plan);
  if (!(predicted.iteration_s > 0)) return paragraph("note", "No prediction: the plan cannot be priced.");
  const double step_s = median_step_s(run), ratio = predicted.iteration_s / step_s;
  std::vector<std::vector<Html>> rows = {{"one step (median)", human_seconds(step_s),
                                          human_seconds(predicted.iteration_s), fmt::format("{:.2f}", 1 / ratio)}};
  if (predicted.tokens_per_s > 0)
    rows.push_back({"tokens/s", short_figure(batch_tokens(plan) / step_s), short_figure(predicted.tokens_per_s),
                    fmt::format("{:.2f}", batch_tokens(plan) / step_s / predicted.tokens_per_s)});
  if (predicted.mfu > 0)
    rows.push_back({"MFU", percent(predicted.mfu * ratio), percent(predicted.mfu), fmt::format("{:.2f}", ratio)});
  return table({"speed", ">measured", ">predicted", ">measured / predicted"}, rows);
}

Html run_table(const TrainRun& run) {
  const StepMetrics &first = run.metrics.front(), &last = run.metrics.back();
  const std::int64_t skipped = last.step - std::ssize(run.metrics);
  double seconds = 0;
  std::int64_t tokens = 0;
  for (const StepMetrics& step : run.metrics) {
    seconds += step.seconds;
    tokens += step.tokens;
  }
  std::vector<std::vector<Html>> rows = {
      {"steps", fmt::format("{} of {}{}", last.step, run.record.steps,
                            skipped > 0 ? fmt::format(", of which {} were skipped", skipped) : "")},
      {"time of all steps", human_seconds(seconds)},
      {"target tokens", human_count(static_cast<double>(tokens))},
      {"training loss",
       fmt::format("{:.4f} in step {}, {:.4f} in step {}", first.loss, first.step, last.loss, last.step)}};
  if (const StepMetrics* validated = last_validated(run)) {
    const StepMetrics* lowest = validated;
    for (const StepMetrics& step : run.metrics)
      if (step.eval_loss && *step.eval_loss < *lowest->eval_loss) lowest = &step;
    std::string text = fmt::format("{:.4f} after step {}", *validated->eval_loss, validated->step);
    if (lowest != validated) text += fmt::format("; lowest: {:.4f} after step {}", *lowest->eval_loss, lowest->step);
    rows.push_back({"validation loss", text});
  }
  rows.push_back({"began with", run.record.model});
  rows.push_back({"data",
                  {run.record.data, run.record.shuffle ? fmt::format(", order of seed {}", run.record.seed)
                                                       : std::string(", in the order of the file")}});
  if (!run.record.eval_data.empty()) rows.push_back({"validation data", run.record.eval_data});
  return table({"run", "what it did"}, rows);
}

// ---- the newest step ----

double busy_s(const TimelineLane& lane) {
  return std::accumulate(lane.passes.begin(), lane.passes.end(), 0.0,
                         [](double sum, const TimelinePass& pass) { return sum + pass.end_s - pass.start_s; });
}

ChartRow lane_row(const TimelineLane& lane, double step_s, const PageAxis& axis) {
  const std::string stage = fmt::format("r{}/s{}", lane.replica, lane.stage);
  const bool real = !lane.device.empty();
  const std::string share = percent(busy_s(lane) / step_s);
  const std::string words =
      fmt::format("{} {}: passes {}, {} of the step; gradients {}, update {}", stage, real ? lane.device : "predicted",
                  human_seconds(busy_s(lane)), share, human_seconds(lane.exchange.end_s - lane.exchange.start_s),
                  human_seconds(lane.update.end_s - lane.update.start_s));
  const auto box = [&](std::string_view css_class, const TimelineSpan& span) {
    return mark(css_class, span.start_s / axis.span, span.end_s / axis.span, words);
  };
  return {.label = real ? Html(lane.device) : Html{tag("b", {}, stage), " predicted"},
          .drawing = drawing(
              "lane", words,
              {axis_lines(axis), box("m1", lane.exchange), box("m3", lane.update), pass_boxes(lane.passes, axis.span)}),
          .figure = share};
}

Html timeline(const StepTimeline& timeline) {
  const PageAxis axis = time_axis(std::max(timeline.seconds, timeline.predicted_s));
  std::vector<std::pair<const TimelineLane*, double>> lanes;  // with the duration of the step that it is part of
  for (const TimelineLane& lane : timeline.predicted) lanes.emplace_back(&lane, timeline.predicted_s);
  for (const TimelineLane& lane : timeline.workers) lanes.emplace_back(&lane, timeline.seconds);
  std::stable_sort(lanes.begin(), lanes.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->replica, a.first->stage) < std::pair(b.first->replica, b.first->stage);
  });
  std::vector<ChartRow> rows;
  for (std::size_t i = 0; i < std::min(lanes.size(), run_lanes_drawn); ++i)
    rows.push_back(lane_row(*lanes[i].first, lanes[i].second, axis));
  rows.push_back(axis_row(axis));
  const std::string lead =
      timeline.predicted.empty()
          ? fmt::format("Step {} took {}; no prediction: the plan cannot be priced.", timeline.step,
                        human_seconds(timeline.seconds))
          : fmt::format("Step {} took {}; cost form motley predicts {}. Each stage: predicted, then its workers.",
                        timeline.step, human_seconds(timeline.seconds), human_seconds(timeline.predicted_s));
  const bool waited = std::ranges::any_of(
      lanes, [](const auto& lane) { return std::ranges::any_of(lane.first->passes, &TimelinePass::weights); });
  Html content = {paragraph("", lead), step_legend(waited), chart(rows)};
  if (lanes.size() > run_lanes_drawn)
    content += paragraph("note", fmt::format("and {} more, in timeline.json", lanes.size() - run_lanes_drawn));
  content +=
      paragraph("note",
                "Figures are the share of the step in which passes run. A worker's times count from when the step "
                "began on it; a pass starts when its input has arrived, and may wait for its group. The "
                "update waits for the gradient norm of all workers.");
  return content;
}

}  // namespace

std::string html_report(const TrainRun& run) {
  const auto plan = read_plan<TrainPlan>(run.record.plan, "run.json: plan");
  const std::string& cluster = plan.cluster.description.name;
  return page("motley run: train", fmt::format("{} on {}", plan.model.name, cluster.empty() ? "the cluster" : cluster),
              head(run, plan),
              {{"curves", "Curves", curves(run, plan)},
               {"figures", "Figures", {speed_table(run, plan), run_table(run)}},
               {"timeline", "Timeline", run.timeline ? timeline(*run.timeline) : Html()}});
}

}  // namespace motley
