#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {

// The lower quartile: what other programs take away at times is not the workers'.
inline double typical(std::vector<double> values) {
  MOTLEY_CHECK(!values.empty());
  const auto quarter = values.begin() + std::ssize(values) / 4;
  std::nth_element(values.begin(), quarter, values.end());
  return *quarter;
}

}  // namespace motley
