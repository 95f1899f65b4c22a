// The non-dominated points of two objectives, both to be made small.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace motley {

// Sums of the same numbers taken in another order differ in their last bits; without a tolerance they would leave false
// points on a front.
inline constexpr double objective_tolerance = 1e-9;

inline bool at_most(double a, double b) { return a <= b + objective_tolerance * std::max(a, b); }

template <class Payload>
struct ParetoPoint {
  double first = 0;
  double second = 0;
  Payload payload;
};

// Keeps a point only while no other one is at least as good in both objectives, within the relative tolerance. Of equal
// points the earliest stays.
template <class Payload>
class ParetoFront {
 public:
  // False where the point is dominated (or equal) and was not taken.
  bool insert(double first, double second, Payload payload) {
    for (const auto& point : points_)
      if (at_most(point.first, first) && at_most(point.second, second)) return false;
    std::erase_if(points_,
                  [&](const auto& point) { return at_most(first, point.first) && at_most(second, point.second); });
    const auto place = std::find_if(points_.begin(), points_.end(), [&](const auto& p) { return p.first > first; });
    points_.insert(place, {first, second, std::move(payload)});
    return true;
  }

  // By the first objective, ascending; the second then descends.
  const std::vector<ParetoPoint<Payload>>& points() const { return points_; }

 private:
  std::vector<ParetoPoint<Payload>> points_;
};

}  // namespace motley
