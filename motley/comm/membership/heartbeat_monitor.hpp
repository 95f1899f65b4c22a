// How long a silence is normal for one peer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace motley {

// Remembers the last gaps between signs of life. A gap is suspicious when it exceeds median + 8 MAD of them (MAD: the
// median distance from the median, which single outliers do not move), and never below the floor.
class HeartbeatMonitor {
 public:
  // Times must not fall.
  void heard(double now_s) {
    if (heard_s_ >= 0) {
      gaps_s_[next_] = now_s - heard_s_;
      next_ = (next_ + 1) % gaps_s_.size();
      count_ = std::min(count_ + 1, gaps_s_.size());
    }
    heard_s_ = now_s;
  }
  // Another's fault that nothing was heard for so long: the last sign of life counts as later.
  void excuse(double pause_s) {
    if (heard_s_ >= 0) heard_s_ += pause_s;
  }
  double heard_s() const { return heard_s_; }

  double deadline_s(double floor_s) const {
    if (count_ == 0) return floor_s;
    auto sorted = gaps_s_;
    const double median_s = middle(sorted);
    for (std::size_t i = 0; i < count_; ++i) sorted[i] = std::abs(sorted[i] - median_s);
    return std::max(floor_s, median_s + 8 * middle(sorted));
  }
  bool operator==(const HeartbeatMonitor&) const = default;

 private:
  static constexpr std::size_t remembered = 16;
  double middle(std::array<double, remembered>& values) const {
    const auto half = values.begin() + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(values.begin(), half, values.begin() + static_cast<std::ptrdiff_t>(count_));
    return *half;
  }

  std::array<double, remembered> gaps_s_{};
  std::size_t next_ = 0, count_ = 0;
  double heard_s_ = -1;
};

}  // namespace motley
