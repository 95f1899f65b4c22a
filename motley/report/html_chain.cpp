// The page of a strategy chain.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "motley/base/units.hpp"
#include "motley/report/chain_report.hpp"
#include "motley/report/html_marks.hpp"
#include "motley/report/html_page.hpp"
#include "motley/report/html_report.hpp"

namespace motley {
namespace {

constexpr std::size_t runs_shown = 64;

Html head(const ChainPlan& plan, const ChainCost& cost) {
  std::vector<PageFigure> list = {
      {"time", human_seconds(cost.total_s()), fmt::format("of {} sites", site_count(plan.chain))},
      {"memory", chain_bytes_text(cost.total_bytes()), "of " + chain_bytes_text(plan.chain.budget_bytes)}};
  if (const double price = plan.predicted.price_s_per_byte.value_or(0); price > 0) {
    const bool small = plan.chain.budget_bytes < 1e6;
    list.push_back(
        {small ? "one more byte saves" : "one more GB saves", human_seconds(small ? price : 1e9 * price), "about"});
  }
  list.push_back(gap_figure(plan.search));
  const std::string bound =
      plan.search.bound ? fmt::format("No choice takes less than {}.", human_seconds(*plan.search.bound)) : "";
  return {figures(list), search_sentence(plan.search, bound)};
}

// A chart of the runs' times; options have colours, and names next to them.
Html choice(const ChainPlan& plan, const ChainCost& cost) {
  const std::vector<ChainRun> runs = chain_runs(plan);
  std::map<std::string, std::size_t> number;
  std::vector<ChartRow> rows;
  double from = 0;
  for (const ChainRun& run : runs) {
    const std::size_t colour = number.try_emplace(run.option, number.size()).first->second;
    const double share = cost.total_s() > 0 ? run.seconds / cost.total_s() : 0;
    const std::string words = fmt::format("{} of {} take {}: {}, {}", run.count, run.sites, run.option,
                                          human_seconds(run.seconds), chain_bytes_text(run.bytes));
    rows.push_back({.label = {tag("b", {}, fmt::format("{} \u00d7 {}", run.count, run.sites)), " ", run.option},
                    .drawing = drawing("lane", words, mark("fill " + colour_class(colour), from, from + share, words)),
                    .figure = fmt::format("{}, {}", human_seconds(run.seconds), chain_bytes_text(run.bytes))});
    from += share;
    if (rows.size() == runs_shown) break;
  }
  Html content = {paragraph("", "Options of the sites: time and memory of each run of equal choices."), chart(rows)};
  if (runs.size() > runs_shown) content += paragraph("note", fmt::format("and {} more runs", runs.size() - runs_shown));
  return content;
}

Html memory(const ChainPlan& plan, const ChainCost& cost) {
  const std::string words =
      fmt::format("{} kept, {} transient, of {}", chain_bytes_text(cost.bytes), chain_bytes_text(cost.transient_bytes),
                  chain_bytes_text(plan.chain.budget_bytes));
  const double budget = plan.chain.budget_bytes, most = std::max(budget, cost.total_bytes());
  if (!(most > 0)) return {};
  return {legend({{"m0", "kept"}, {"m2", "largest transient"}, {"room", "free"}}),
          chart({{.label = "memory",
                  .drawing = {stacked_bar({{"m0", cost.bytes}, {"m2", cost.transient_bytes}}, budget, most, words),
                              paragraph("note", words)},
                  .figure = chain_bytes_text(cost.total_bytes())}})};
}

// The front as a curve of steps: less time for more memory.
Html front(const ChainPlan& plan, const ChainCost& cost) {
  if (plan.front.size() < 2) return {};
  constexpr double width = 360, height = 200, left = 12, right = 12, top = 22, below = 24;
  double least_s = plan.front[0].time_s, most_s = least_s, least = plan.front[0].bytes, most = least;
  for (const ChainPoint& point : plan.front) {
    least_s = std::min(least_s, point.time_s);
    most_s = std::max(most_s, point.time_s);
    least = std::min(least, point.bytes);
    most = std::max(most, point.bytes);
  }
  if (!(most > least) || !(most_s > least_s)) return {};
  const auto x = [&](double bytes) { return left + (width - left - right) * (bytes - least) / (most - least); };
  const auto y = [&](double time_s) { return top + (height - top - below) * (most_s - time_s) / (most_s - least_s); };
  std::string path;
  Html dots;
  for (const ChainPoint& point : plan.front) {
    path += path.empty() ? fmt::format("M{:.1f} {:.1f}", x(point.bytes), y(point.time_s))
                         : fmt::format("H{:.1f}V{:.1f}", x(point.bytes), y(point.time_s));
    dots += tag(
        "circle",
        {{"cx", fmt::format("{:.1f}", x(point.bytes))}, {"cy", fmt::format("{:.1f}", y(point.time_s))}, {"r", "2.5"}},
        tag("title", {}, fmt::format("{} in {}", human_seconds(point.time_s), chain_bytes_text(point.bytes))));
  }
  const auto text = [&](double at_x, double at_y, const char* anchor, const std::string& words) {
    return tag("text",
               {{"x", fmt::format("{:.0f}", at_x)}, {"y", fmt::format("{:.0f}", at_y)}, {"text-anchor", anchor}},
               words);
  };
  const std::string words =
      fmt::format("{} points, from {} in {} to {} in {}", plan.front.size(), human_seconds(most_s),
                  chain_bytes_text(least), human_seconds(least_s), chain_bytes_text(most));
  Html marks = {tag("title", {}, "Time over memory"),
                tag("desc", {}, words),
                tag("path", {{"class", "curve-line"}, {"d", path}}),
                dots,
                text(left, 12, "start", human_seconds(most_s)),
                text(left, height - 6, "start", chain_bytes_text(least)),
                text(width - right, height - 6, "end", chain_bytes_text(most)),
                text(width - right, y(least_s) - 8, "end", human_seconds(least_s))};
  if (cost.total_bytes() >= least && cost.total_bytes() <= most)
    marks += tag("circle",
                 {{"class", "chosen"},
                  {"cx", fmt::format("{:.1f}", x(cost.total_bytes()))},
                  {"cy", fmt::format("{:.1f}", y(cost.total_s()))},
                  {"r", "6"}},
                 tag("title", {}, "this choice"));
  return {
      paragraph("", "Pareto front: choices that no other beats in both time and memory. The ring marks this choice."),
      tag("svg",
          {{"class", "map"},
           {"viewBox", fmt::format("0 0 {:.0f} {:.0f}", width, height)},
           {"role", "img"},
           {"aria-label", words}},
          marks)};
}

}  // namespace

std::string html_report(const ChainPlan& plan) {
  const ChainCost cost = chain_cost(plan.chain, plan.choice);
  return page("motley plan: chain", plan.chain.name.empty() ? "A strategy chain" : plan.chain.name, head(plan, cost),
              {{"choice", "Choice", choice(plan, cost)},
               {"memory", "Memory", memory(plan, cost)},
               {"cost", "Cost", cost_content(explain_chain(plan))},
               {"front", "Front", front(plan, cost)}});
}

}  // namespace motley
