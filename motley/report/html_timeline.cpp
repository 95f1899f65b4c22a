#include "motley/report/html_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/units.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/train/train_price.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/table.hpp"
#include "motley/sim/simulate.hpp"
#include "motley/workload/arrivals.hpp"

namespace motley {
namespace {

constexpr std::size_t intervals = 80;     // of a curve
constexpr std::size_t curves_shown = 16;  // the busiest stages; others are folded
constexpr std::size_t curves_folded = 48;
constexpr std::size_t requests_drawn = 20;
constexpr double assumed_load = 0.8;  // of what the plan carries, where the workload says no rate
constexpr std::size_t lanes_drawn = 24;
constexpr std::size_t passes_drawn = 12'000;  // of all replicas; of more, only the slowest replica is drawn
constexpr double lane_units = 2000;

// ---- serving ----

struct Run {
  ServePlan plan;  // with a rate
  std::string offered;
  SimResult result;
};

Run simulated(const ServePlan& plan, const PageOptions& options) {
  Run run{.plan = plan, .offered = {}, .result = {}};
  Workload& workload = run.plan.workload;
  const bool traced = workload.arrival.process == ArrivalProcess::trace;
  if (!traced && workload.total_rate_per_s() <= 0) {
    const double carried = plan.predicted.requests_per_s > 0 ? plan.predicted.requests_per_s
                                                             : price_serve(plan, {.form = "motley"}).requests_per_s;
    for (RequestClass& described : workload.classes)
      described.rate_per_s = assumed_load * carried / static_cast<double>(workload.classes.size());
    run.offered = fmt::format("{:.3g} requests/s, {} of the capacity of the plan (the workload has no rate)",
                              workload.total_rate_per_s(), percent(assumed_load));
  } else {
    run.offered =
        traced ? "a trace" : fmt::format("{:.3g} requests/s, the workload's rate", workload.total_rate_per_s());
  }
  run.result = simulate(run.plan, draw_requests(workload, {.requests = options.requests, .seed = options.seed}),
                        {.record = Record::timeline});
  return run;
}

double end_of(const Timeline& timeline) {
  double end_s = 0;
  for (const Timeline::Span& span : timeline.spans) end_s = std::max(end_s, span.start_s + span.duration_s);
  return end_s;
}

// Share of every interval in which each stage computes.
std::vector<std::vector<double>> busy_shares(const Timeline& timeline, double end_s) {
  std::vector<std::vector<double>> shares(timeline.stages, std::vector<double>(intervals));
  const double width_s = end_s / static_cast<double>(intervals);
  for (const Timeline::Span& span : timeline.spans) {
    if (span.track >= timeline.stages) continue;
    const double from = span.start_s / width_s, to = (span.start_s + span.duration_s) / width_s;
    for (auto i = static_cast<std::size_t>(from); i < intervals && static_cast<double>(i) < to; ++i)
      shares[span.track][i] += std::min(to, static_cast<double>(i + 1)) - std::max(from, static_cast<double>(i));
  }
  return shares;
}

Html triple(const Percentiles& p) {
  return fmt::format("{} / {} / {}", human_seconds(p.p50), human_seconds(p.p90), human_seconds(p.p99));
}

Html class_table(const SimResult& result) {
  std::vector<std::vector<Html>> rows;
  const auto add = [&](const RequestSummary& summary) {
    rows.push_back({summary.name, fmt::format("{}", summary.requests),
                    fmt::format("{:.1f}%", 100 * summary.slo_attainment), triple(summary.ttft_s),
                    triple(summary.tpot_s), triple(summary.latency_s)});
  };
  for (const RequestSummary& summary : result.classes) add(summary);
  if (result.classes.size() > 1) add(result.all);
  return table({"class", ">requests", ">inside deadlines", ">first token, p50 / p90 / p99", ">per token", ">latency"},
               rows);
}

Html stage_curves(const SimResult& result) {
  const Timeline& timeline = *result.timeline;
  const double end_s = end_of(timeline);
  if (!(end_s > 0)) return {};
  const auto shares = busy_shares(timeline, end_s);
  const PageAxis axis = time_axis(end_s);
  std::vector<std::size_t> order(timeline.stages);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() > curves_shown)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return result.stages[a].use > result.stages[b].use; });
  const auto rows_of = [&](std::size_t from, std::size_t to) {
    std::vector<ChartRow> rows;
    for (std::size_t i = from; i < to; ++i) {
      const StageUse& use = result.stages[order[i]];
      const std::string words = fmt::format("{}: busy {} of the time", use.stage, percent(use.use));
      rows.push_back(
          {.label = tag("b", {}, use.stage),
           .drawing = drawing("curve", words, {mark("room", 0, 1), axis_lines(axis), area("busy", shares[order[i]])}),
           .figure = {tag("b", {}, percent(use.use)), fmt::format(" {:.3g} tokens per step", use.tokens_per_step)}});
    }
    rows.push_back(axis_row(axis));
    return chart(rows);
  };
  const std::size_t shown = std::min(order.size(), curves_shown);
  Html content = rows_of(0, shown);
  if (order.size() > shown)
    content += details(fmt::format("{} less busy stages", std::min(order.size(), curves_folded) - shown),
                       rows_of(shown, std::min(order.size(), curves_folded)));
  return content;
}

Html request_lanes(const Run& run) {
  std::vector<const RequestRecord*> drawn;
  double from_s = never_s, to_s = 0;
  for (const RequestRecord& record : run.result.records) {
    if (!record.finished() || drawn.size() == requests_drawn) continue;
    drawn.push_back(&record);
    from_s = std::min(from_s, record.arrival_s);
    to_s = std::max(to_s, record.last_token_s);
  }
  if (drawn.empty() || !(to_s > from_s)) return {};
  const PageAxis axis = time_axis(to_s - from_s);
  const auto at = [&](double time_s) { return (time_s - from_s) / (to_s - from_s); };
  std::vector<ChartRow> rows;
  for (const RequestRecord* record : drawn) {
    const std::string words =
        fmt::format("{} tokens in, {} out: first token after {}, last after {}", record->prompt_tokens,
                    record->output_tokens, human_seconds(record->ttft_s()), human_seconds(record->latency_s()));
    const std::string& name = run.plan.workload.classes[static_cast<std::size_t>(record->request_class)].name;
    rows.push_back(
        {.label = name,
         .drawing = drawing("thin", words,
                            {axis_lines(axis), mark("m2", at(record->arrival_s), at(record->first_token_s), words),
                             mark("m0", at(record->first_token_s), at(record->last_token_s), words)}),
         .figure = human_seconds(record->latency_s())});
  }
  rows.push_back(axis_row(axis));
  return {tag("h3", {}, fmt::format("The first {} requests", drawn.size())),
          legend({{"m2", "waiting and prefill, up to the first token"}, {"m0", "decode"}}), chart(rows)};
}

Html run_content(const Run& run) {
  const SimResult& result = run.result;
  const std::string lead = fmt::format(
      "{} simulated requests, {}: {:.4g} output tokens/s, {:.1f}% inside their deadlines, over {} of simulated time.",
      result.all.requests, run.offered, result.all.tokens_per_s, 100 * result.all.slo_attainment,
      human_seconds(result.measured_s));
  Html content = {paragraph("", lead), class_table(result), tag("h3", {}, "Use of each stage"), stage_curves(result),
                  request_lanes(run)};
  if (result.all.refused > 0)
    content +=
        paragraph("note", fmt::format("{} requests were refused: a queue was full, or they do not fit in the KV cache.",
                                      result.all.refused));
  if (result.preemptions > 0)
    content += paragraph("note",
                         fmt::format("{} times a sequence lost its KV blocks and was recomputed.", result.preemptions));
  return content;
}

// ---- training ----

PassKind kind_of(const TimelinePass& pass) {
  return pass.weights ? PassKind::weights : pass.backward ? PassKind::backward : PassKind::forward;
}

Html passes_path(const std::vector<TimelinePass>& passes, PassKind kind, double span_s) {
  std::string path;
  for (const TimelinePass& pass : passes) {
    if (kind_of(pass) != kind) continue;
    const auto from = std::lround(lane_units * pass.start_s / span_s);
    const auto width = std::max(1L, std::lround(lane_units * pass.end_s / span_s) - from);
    path += fmt::format("M{} {}h{}v46h-{}z", from, kind == PassKind::forward ? 2 : 52, width, width);
  }
  return path.empty() ? Html() : tag("path", {{"class", fmt::format("pass {}", name_of(kind))}, {"d", path}});
}

ChartRow stage_lane(const std::string& name, const std::vector<TimelinePass>& passes, double busy_s,
                    const TrainStepPrice& price, const PageAxis& axis) {
  const std::string words =
      fmt::format("{}: busy {}, {} of the step", name, human_seconds(busy_s), percent(busy_s / price.iteration_s));
  return {.label = tag("b", {}, name),
          .drawing = drawing("lane", words, {axis_lines(axis), pass_boxes(passes, price.iteration_s)}),
          .figure = percent(busy_s / price.iteration_s)};
}

ChartRow sync_lane(const TrainStepPrice& price, const PageAxis& axis) {
  const double end = 1 - price.update_s / price.iteration_s, start = end - price.exchange_s / price.iteration_s;
  const std::string words =
      fmt::format("gradients {}, update {}", human_seconds(price.exchange_s), human_seconds(price.update_s));
  return {
      .label = "sync",
      .drawing = drawing("lane", words, {axis_lines(axis), mark("m1", start, end, words), mark("m3", end, 1, words)}),
      .figure = percent((price.exchange_s + price.update_s) / price.iteration_s)};
}

Html replica_lanes(std::size_t replica, const TrainPlan& plan, const TrainStepPrice& price,
                   const std::vector<PipelinePass>& passes, const PageAxis& axis) {
  const std::size_t stages = plan.replicas[replica].stages.size();
  std::vector<std::vector<TimelinePass>> of_stage(stages);
  for (const PipelinePass& pass : passes)
    if (pass.pipeline == replica)
      of_stage[pass.stage].push_back(
          {pass.micro_batch, pass.kind != PassKind::forward, pass.start_s, pass.end_s, pass.kind == PassKind::weights});
  std::vector<ChartRow> rows;
  for (std::size_t s = 0; s < std::min(stages, lanes_drawn); ++s)
    rows.push_back(
        stage_lane(fmt::format("r{}/s{}", replica, s), of_stage[s], price.pipelines[replica].busy_s[s], price, axis));
  rows.push_back(sync_lane(price, axis));
  rows.push_back(axis_row(axis));
  Html content = chart(rows);
  if (stages > lanes_drawn) content += paragraph("note", fmt::format("and {} more stages", stages - lanes_drawn));
  return content;
}

Html step_content(const TrainPlan& plan) {
  std::vector<PipelinePass> passes;
  const TrainStepPrice price = price_step(plan, {.form = "motley"}, &passes);
  const PageAxis axis = time_axis(price.iteration_s);
  std::vector<std::size_t> order(plan.replicas.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return price.pipelines[a].makespan_s > price.pipelines[b].makespan_s;
  });
  const std::string which =
      order.size() > 1 ? fmt::format(" Replica {} is the slowest of {}.", order[0], order.size()) : "";
  Html content = {
      paragraph(
          "",
          fmt::format(
              "One simulated step in cost form motley: {}, of which {} exchange gradients and {} update the weights.{}",
              human_seconds(price.iteration_s), human_seconds(price.exchange_s), human_seconds(price.update_s), which)),
      step_legend(plan.schedule == PipelineSchedule::zb_h1), replica_lanes(order[0], plan, price, passes, axis)};
  Html others;
  if (passes.size() <= passes_drawn)
    for (std::size_t i = 1; i < order.size(); ++i)
      others +=
          Html{tag("h3", {}, fmt::format("Replica {}", order[i])), replica_lanes(order[i], plan, price, passes, axis)};
  if (!others.empty()) content += details(fmt::format("The other {} replicas", order.size() - 1), others);
  return content;
}

template <class Content>
Html unless_impossible(Content content) {
  try {
    return content();
  } catch (const Error& error) {  // such as a trace that is no longer there
    return paragraph("note", fmt::format("Not simulated: {}.", error.what()));
  }
}

}  // namespace

Html pass_boxes(const std::vector<TimelinePass>& passes, double span_s) {
  return tag("svg",
             {{"viewBox", fmt::format("0 0 {:.0f} 100", lane_units)},
              {"preserveAspectRatio", "none"},
              {"width", "100%"},
              {"height", "100%"}},
             {passes_path(passes, PassKind::forward, span_s), passes_path(passes, PassKind::backward, span_s),
              passes_path(passes, PassKind::weights, span_s)});
}

Html step_legend(bool waited) {
  std::vector<LegendEntry> entries = {{"c0 fill", "forward pass of a micro-batch (upper half)"},
                                      {"c1 fill", "backward pass (lower half)"}};
  if (waited) entries.push_back({"c2 fill", "gradients of weights that have waited (lower half)"});
  entries.push_back({"m1", "gradients"});
  entries.push_back({"m3", "update"});
  return legend(entries);
}

Html serve_timeline(const ServePlan& plan, const PageOptions& options) {
  return unless_impossible([&] { return run_content(simulated(plan, options)); });
}

Html train_timeline(const TrainPlan& plan) {
  return unless_impossible([&] { return step_content(plan); });
}

}  // namespace motley
