// The median, which a few unusual values do not change.
#pragma once

#include <algorithm>
#include <vector>

namespace motley {

// Of two in the middle the larger; there is at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace motley
