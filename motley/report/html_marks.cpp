#include "motley/report/html_marks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/units.hpp"
#include "motley/report/plan_report.hpp"

namespace motley {
namespace {

constexpr std::size_t colours = 8;
constexpr int most_ticks = 5;

PageAxis axis(double span, double step, double scale, std::string_view unit) {
  PageAxis made{.span = span};
  for (int i = 0; i * step <= span * (1 + 1e-9); ++i) {
    made.ticks.push_back(i * step / span);
    made.labels.push_back(fmt::format("{:g}{}", std::round(i * step / scale * 1e6) / 1e6, unit));
  }
  return made;
}

}  // namespace

double even_step(double span, int steps) {
  double step = std::pow(10, std::floor(std::log10(span / steps)));
  for (const double factor : {2.0, 2.5, 2.0})
    if (span / step > steps * (1 + 1e-9)) step *= factor;
  return step;
}

std::string share_of_width(double share) {
  return fmt::format("{:.5g}%", std::round(1e4 * std::clamp(share, 0.0, 1.0)) / 100);
}

Html drawing(std::string_view size, const std::string& description, const Html& marks) {
  return tag("svg", {{"class", std::string(size)}, {"role", "img"}, {"aria-label", description}}, marks);
}

Html mark(std::string_view css_class, double from, double to, const std::string& hint) {
  return tag("rect",
             {{"class", std::string(css_class)},
              {"x", share_of_width(from)},
              {"width", share_of_width(std::clamp(to, 0.0, 1.0) - std::clamp(from, 0.0, 1.0))}},
             hint.empty() ? Html() : tag("title", {}, hint));
}

Html stacked_bar(const std::vector<BarPart>& parts, double limit, double total, const std::string& description) {
  Html marks = mark("room", 0, limit / total);
  double from = 0;
  for (const BarPart& part : parts) {
    if (part.value <= 0) continue;
    marks += mark(part.css_class, from / total, (from + part.value) / total, part.hint);
    from += part.value;
  }
  return drawing("bar", description, marks);
}

Html legend(const std::vector<LegendEntry>& entries) {
  Html list;
  for (const LegendEntry& entry : entries)
    list += tag("li", {},
                {tag("svg", {{"class", "swatch"}, {"aria-hidden", "true"}}, mark(entry.css_class, 0, 1)), entry.label});
  return tag("ul", {{"class", "legend"}}, list);
}

Html chart(const std::vector<ChartRow>& rows) {
  Html content;
  for (const ChartRow& row : rows)
    content += Html{div("label", row.label), div("drawing", row.drawing), div("figure", row.figure)};
  return div("chart", content);
}

PageAxis time_axis(double span_s) {
  const double step = even_step(span_s, most_ticks);
  if (step >= 1) return axis(span_s, step, 1, " s");
  if (step >= 1e-3) return axis(span_s, step, 1e-3, " ms");
  return axis(span_s, step, 1e-6, " us");
}

PageAxis count_axis(double span) { return axis(span, std::max(1.0, even_step(span, most_ticks)), 1, ""); }

ChartRow axis_row(const PageAxis& axis) {
  Html marks;
  for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
    const char* anchor = axis.ticks[i] < 0.05 ? "start" : axis.ticks[i] > 0.95 ? "end" : "middle";
    marks += tag("text", {{"x", share_of_width(axis.ticks[i])}, {"y", "12"}, {"text-anchor", anchor}}, axis.labels[i]);
  }
  return {.label = {}, .drawing = tag("svg", {{"class", "axis"}, {"aria-hidden", "true"}}, marks)};
}

Html axis_lines(const PageAxis& axis) {
  Html lines;
  for (const double tick : axis.ticks)
    lines +=
        tag("line", {{"class", "tick"}, {"x1", share_of_width(tick)}, {"x2", share_of_width(tick)}, {"y2", "100%"}});
  return lines;
}

Html area(std::string_view css_class, const std::vector<double>& shares) {
  std::string path = "M0 100";
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const int height = 100 - static_cast<int>(std::lround(100 * std::clamp(shares[i], 0.0, 1.0)));
    path += fmt::format("L{} {}L{} {}", i, height, i + 1, height);
  }
  path += fmt::format("L{} 100Z", shares.size());
  return tag("svg",
             {{"viewBox", fmt::format("0 0 {} 100", std::max<std::size_t>(1, shares.size()))},
              {"preserveAspectRatio", "none"},
              {"width", "100%"},
              {"height", "100%"}},
             tag("path", {{"class", std::string(css_class)}, {"d", path}}));
}

std::string colour_class(std::size_t number) { return fmt::format("c{}", number % colours); }

std::string short_figure(double value) { return value < 1e4 ? fmt::format("{:.4g}", value) : human_count(value); }

Html device_names(const std::vector<std::string>& devices) {
  constexpr std::size_t shown = 3, long_text = 48;
  const std::string all = compact_devices(devices);
  if (all.size() <= long_text || devices.size() <= shown + 1) return all;
  const std::vector<std::string> first(devices.begin(), devices.begin() + shown);
  return tag("span", {{"title", all}}, fmt::format("{} and {} more", compact_devices(first), devices.size() - shown));
}

}  // namespace motley
