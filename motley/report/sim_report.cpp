#include "motley/report/sim_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr double visible_use = 0.01;  // links that are used less are left out of the table

Value percentiles_json(const Percentiles& p) { return Value::object({{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}}); }

Value summary_json(const RequestSummary& summary) {
  return Value::object({{"requests", summary.requests},
                        {"finished", summary.finished},
                        {"refused", summary.refused},
                        {"unfinished", summary.unfinished},
                        {"slo_attainment", summary.slo_attainment},
                        {"ttft_s", percentiles_json(summary.ttft_s)},
                        {"tpot_s", percentiles_json(summary.tpot_s)},
                        {"latency_s", percentiles_json(summary.latency_s)},
                        {"tokens_per_s", summary.tokens_per_s}});
}

std::string percentiles_text(const Percentiles& p) {
  return fmt::format("{} / {} / {}", human_seconds(p.p50), human_seconds(p.p90), human_seconds(p.p99));
}

std::string classes_table(const SimResult& result) {
  Table table({"class", ">requests", ">in time", ">first token", ">per token", ">latency", ">tokens/s"});
  const auto add = [&](const RequestSummary& summary) {
    table.add({summary.name, fmt::format("{}", summary.requests), fmt::format("{:.1f}%", 100 * summary.slo_attainment),
               percentiles_text(summary.ttft_s), percentiles_text(summary.tpot_s), percentiles_text(summary.latency_s),
               fmt::format("{:.4g}", summary.tokens_per_s)});
  };
  for (const RequestSummary& summary : result.classes) add(summary);
  if (result.classes.size() > 1) add(result.all);
  return table.render();
}

std::string uses_table(const SimResult& result) {
  Table table({"stage or link", ">busy", ">steps", ">tokens/step"});
  for (const StageUse& stage : result.stages)
    table.add({stage.stage, percent(stage.use), fmt::format("{}", stage.steps),
               fmt::format("{:.1f}", stage.tokens_per_step)});
  for (const LinkUse& link : result.links)
    if (link.use >= visible_use)
      table.add({fmt::format("{} > {}", link.from, link.to), percent(link.use), "", human_bytes(link.bytes)});
  return table.render();
}

std::string queues_table(const SimResult& result) {
  Table table({"routes", ">waiting, mean", ">most", ">KV cache in use, mean", ">most"});
  for (const QueueUse& queue : result.queues)
    table.add({fmt::format("{}", fmt::join(queue.routes, ", ")), fmt::format("{:.1f}", queue.waiting_mean),
               fmt::format("{}", queue.waiting_peak), percent(queue.kv_mean), percent(queue.kv_peak)});
  return table.render();
}

// What did not go as it should; empty where all did.
std::string troubles(const SimResult& result) {
  std::string text;
  const auto add = [&](std::int64_t count, std::string_view what) {
    if (count > 0) text += fmt::format("  {} {}\n", count, what);
  };
  add(result.all.refused, "requests refused: the queue was full, or they do not fit in the KV cache");
  add(result.all.unfinished, "requests unfinished at the end");
  add(result.preemptions, "times a sequence lost its KV blocks and was recomputed");
  add(result.restarts, "times a request restarted elsewhere after a fault");
  return text.empty() ? "" : "\n" + text;
}

}  // namespace

std::string sim_report(const SimResult& result) {
  return fmt::format(
      "{} requests in {} of simulated time: {:.1f}% in time, {:.4g} output tokens/s{}\n\ntimes are p50 / p90 / "
      "p99\n{}\n{}\n{}{}",
      result.all.requests, human_seconds(result.measured_s), 100 * result.all.slo_attainment, result.all.tokens_per_s,
      result.cached_share > 0 ? fmt::format(", {} of the prompts' tokens were there", percent(result.cached_share))
                              : "",
      classes_table(result), uses_table(result), queues_table(result), troubles(result));
}

Value sim_json(const SimResult& result) {
  Value json = Value::object({{"format", "motley.simulation/1"}});
  const Value all = summary_json(result.all);
  for (const auto& [key, value] : all.as_object()) json.set(key, value);
  json.set("measured_s", result.measured_s);
  json.set("preemptions", result.preemptions);
  json.set("restarts", result.restarts);
  json.set("cached_share", result.cached_share);
  json.set("events", result.events);
  Value::Array classes, stages, links, queues;
  for (const RequestSummary& summary : result.classes) {
    Value named = Value::object({{"name", summary.name}});
    const Value figures = summary_json(summary);
    for (const auto& [key, value] : figures.as_object()) named.set(key, value);
    classes.push_back(std::move(named));
  }
  for (const StageUse& stage : result.stages)
    stages.push_back(Value::object(
        {{"id", stage.stage}, {"use", stage.use}, {"steps", stage.steps}, {"tokens_per_step", stage.tokens_per_step}}));
  for (const LinkUse& link : result.links)
    links.push_back(Value::object({{"from", link.from}, {"to", link.to}, {"use", link.use}, {"bytes", link.bytes}}));
  for (const QueueUse& queue : result.queues) {
    Value::Array routes(queue.routes.begin(), queue.routes.end());
    queues.push_back(Value::object({{"routes", std::move(routes)},
                                    {"waiting_mean", queue.waiting_mean},
                                    {"waiting_peak", queue.waiting_peak},
                                    {"kv_use_mean", queue.kv_mean},
                                    {"kv_use_peak", queue.kv_peak}}));
  }
  json.set("classes", std::move(classes));
  json.set("stages", std::move(stages));
  json.set("links", std::move(links));
  json.set("queues", std::move(queues));
  return json;
}

std::string chrome_trace(const Timeline& timeline) {
  constexpr double us = 1e6;
  constexpr int stages = 1, links = 2, counters = 3;  // shown as processes
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const auto to = std::back_inserter(out);
  const auto quoted = [](const std::string& text) { return to_json(Value(text)); };
  for (const auto& [process, name] : {std::pair(stages, "stages"), {links, "links"}, {counters, "queues"}})
    fmt::format_to(to, R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"{}"}}}},)", process, name);
  const auto process_of = [&](std::size_t track) { return track < timeline.stages ? stages : links; };
  for (std::size_t track = 0; track < timeline.tracks.size(); ++track)
    fmt::format_to(to, R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}},)",
                   process_of(track), track + 1, quoted(timeline.tracks[track]));
  for (const Timeline::Span& span : timeline.spans)
    fmt::format_to(
        to,
        R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"args":{{"tokens":{},"sequences":{}}}}},)",
        process_of(span.track), span.track + 1, span.start_s * us, span.duration_s * us,
        span.step > 0 ? fmt::format("\"step {}\"", span.step) : "\"keys and values\"", span.tokens, span.sequences);
  for (const Timeline::Sample& sample : timeline.samples)
    fmt::format_to(
        to, R"({{"ph":"C","pid":{},"ts":{:.3f},"name":{},"args":{{"waiting":{},"running":{},"KV blocks":{}}}}},)",
        counters, sample.time_s * us, quoted(timeline.queues[sample.queue]), sample.waiting, sample.running,
        sample.kv_blocks);
  for (const Timeline::Mark& mark : timeline.marks)
    fmt::format_to(to, R"({{"ph":"i","s":"g","pid":{},"tid":1,"ts":{:.3f},"name":{}}},)", stages, mark.time_s * us,
                   quoted(mark.what));
  out.back() = ']';  // there is at least the name of a process
  return out + "}\n";
}

}  // namespace motley
