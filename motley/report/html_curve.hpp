// Figures over steps, as lines.
#pragma once

#include <string>
#include <vector>

#include "motley/report/html.hpp"

namespace motley {

struct CurvePoint {
  double x = 0, y = 0;
};

struct Curve {
  std::string name;
  std::string css_class = {};           // its colour
  bool dots = false;                    // of few points: each is marked, with its figures where one points at it
  std::vector<CurvePoint> points = {};  // in the order of x
};

// One drawing for all curves, over x from 0 to `end_x`, with a scale of its own; a long curve's points are means of as
// many neighbours as it takes. Empty where no curve has a point.
Html curve_drawing(const std::vector<Curve>& curves, double end_x, bool from_zero, const std::string& description);

}  // namespace motley
