#include "motley/report/html_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/rounding.hpp"
#include "motley/report/html_marks.hpp"

namespace motley {
namespace {

constexpr std::size_t most_points = 400;
constexpr int most_steps = 4;
constexpr double units = 1000;  // of a path, across and down

std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  const std::size_t neighbours = ceil_div(points.size(), most_points);
  if (neighbours < 2) return points;
  std::vector<CurvePoint> means;
  for (std::size_t first = 0; first < points.size(); first += neighbours) {
    const std::size_t end = std::min(points.size(), first + neighbours);
    CurvePoint sum;
    for (std::size_t i = first; i < end; ++i) {
      sum.x += points[i].x;
      sum.y += points[i].y;
    }
    const auto count = static_cast<double>(end - first);
    means.push_back({sum.x / count, sum.y / count});
  }
  return means;
}

// Whole steps around what is drawn.
struct Scale {
  double low = 0, step = 1;
  int steps = 1;
  double high() const { return low + step * steps; }
  double share(double y) const { return 1 - (y - low) / (high() - low); }  // of the height, from above
};

Scale scale_of(double low, double high, bool from_zero) {
  if (from_zero) low = std::min(low, 0.0);
  if (!(high > low)) {
    const double around = std::max(std::abs(high) / 10, 1e-9);
    low -= from_zero ? 0 : around;
    high += around;
  }
  Scale scale;
  scale.step = even_step(high - low, most_steps);
  scale.low = scale.step * std::floor(low / scale.step + 1e-9);
  scale.steps = std::max(1, static_cast<int>(std::ceil((high - scale.low) / scale.step - 1e-9)));
  return scale;
}

Html scale_marks(const Scale& scale) {
  Html marks;
  for (int i = 0; i <= scale.steps; ++i) {
    const double y = scale.low + i * scale.step;
    const std::string at = share_of_width(scale.share(y));
    marks += tag("line", {{"class", "tick"}, {"x1", "0"}, {"x2", "100%"}, {"y1", at}, {"y2", at}});
    if (i < scale.steps)
      marks += tag("text", {{"class", "scale"}, {"x", "2"}, {"y", at}},
                   fmt::format("{:.4g}", std::abs(y) < 1e-9 * scale.step ? 0 : y));
  }
  return marks;
}

}  // namespace

Html curve_drawing(const std::vector<Curve>& curves, double end_x, bool from_zero, const std::string& description) {
  std::vector<std::vector<CurvePoint>> drawn;
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const Curve& curve : curves)
    for (const CurvePoint& point : drawn.emplace_back(thinned(curve.points))) {
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  if (!(high >= low) || !(end_x > 0)) return {};
  const Scale scale = scale_of(low, high, from_zero);
  Html paths, dots;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string path;
    for (const CurvePoint& point : drawn[i]) {
      path += fmt::format("{}{:.4g} {:.4g}", path.empty() ? "M" : "L", units * point.x / end_x,
                          units * scale.share(point.y));
      if (curves[i].dots)
        dots += tag("circle",
                    {{"class", curves[i].css_class},
                     {"cx", share_of_width(point.x / end_x)},
                     {"cy", share_of_width(scale.share(point.y))},
                     {"r", "3"}},
                    tag("title", {}, fmt::format("{} {:.5g} after step {:.0f}", curves[i].name, point.y, point.x)));
    }
    if (!path.empty()) paths += tag("path", {{"class", "curve-line " + curves[i].css_class}, {"d", path}});
  }
  const Html lines = tag("svg",
                         {{"viewBox", fmt::format("0 0 {0:.0f} {0:.0f}", units)},
                          {"preserveAspectRatio", "none"},
                          {"width", "100%"},
                          {"height", "100%"}},
                         paths);
  return drawing("plot", description, {scale_marks(scale), lines, dots});
}

}  // namespace motley
