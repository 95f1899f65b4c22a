// Bars, strips and axes. Drawings are SVG whose widths are percentages: they follow the page, and their text keeps its
// size.
#pragma once

#include <string>
#include <vector>

#include "motley/report/html.hpp"

namespace motley {

// "12.35%" of 0.12345; what is outside [0, 1] is cut.
std::string share_of_width(double share);

// A drawing with what it shows, in words. `size` is a class that sets its height.
Html drawing(std::string_view size, const std::string& description, const Html& marks);
// A box between two shares of the width, with a text that appears where one points at it (or none).
Html mark(std::string_view css_class, double from, double to, const std::string& hint = {});

// One after the other, as shares of `total`; what is left of `limit` is drawn as room, what is left of `total` is not.
struct BarPart {
  std::string css_class;
  double value = 0;
  std::string hint = {};
};
Html stacked_bar(const std::vector<BarPart>& parts, double limit, double total, const std::string& description);

struct LegendEntry {
  std::string css_class;
  std::string label;
};
Html legend(const std::vector<LegendEntry>& entries);

// Rows of label, drawing and figure below each other.
struct ChartRow {
  Html label;
  Html drawing;
  Html figure = {};
};
Html chart(const std::vector<ChartRow>& rows);

// The smallest of 1, 2, 5, 10, 20, ... with which `span` takes at most this many steps.
double even_step(double span, int steps);

// Even steps from 0 to `span`.
struct PageAxis {
  double span = 1;
  std::vector<std::string> labels = {};
  std::vector<double> ticks = {};  // shares of the width
};
PageAxis time_axis(double span_s);
PageAxis count_axis(double span);
// The labels, as the last row of a chart; and the lines behind every other row.
ChartRow axis_row(const PageAxis& axis);
Html axis_lines(const PageAxis& axis);

// A curve of shares (0 to 1) over equal intervals, filled to the ground.
Html area(std::string_view css_class, const std::vector<double>& shares);

// Eight colours, again and again: "c0" to "c7".
std::string colour_class(std::size_t number);

// "503.2", "52.1 k": a figure in a few characters.
std::string short_figure(double value);

// "box/0-3, lab/1" where that is short; "box/0, box/2 and 14 more" otherwise, with all of them where one points at it.
Html device_names(const std::vector<std::string>& devices);

}  // namespace motley
