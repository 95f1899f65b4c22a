#include "motley/workers/speed_monitor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "motley/base/median.hpp"

namespace motley {
namespace {

constexpr std::size_t known_from = 32, known_steps = 128;  // steps of one size
constexpr double window_s = 2, lone_step_s = 4;
constexpr std::size_t least_steps = 3;
constexpr double slow_from = 4, slow_until = 1.5, unusual = 2;
constexpr double least_step_s = 0.004;  // an operating system may hold up shorter ones so much

}  // namespace

// A ratio counts as usual once its step has left the window without the device having been slow meanwhile.
void SpeedMonitor::add(std::int64_t tokens, double believed_s, double seconds) {
  if (tokens < 1 || !(believed_s > 0) || !(seconds >= 0) || !std::isfinite(seconds)) return;
  const int size = static_cast<int>(std::lround(2 * std::log2(tokens)));
  const std::deque<double>& ratios = ratios_[size];
  if (ratios.size() < known_from) return learn(size, seconds / believed_s);
  const double usual_s =
      believed_s * std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size());
  latest_.push_back({.size = size, .seconds = seconds, .believed_s = believed_s, .usual_s = usual_s});
  seconds_ += seconds;
  usual_s_ += usual_s;
  while (latest_.size() > least_steps && seconds_ - latest_.front().seconds >= window_s) {
    const Step oldest = latest_.front();
    latest_.pop_front();
    seconds_ -= oldest.seconds;
    usual_s_ -= oldest.usual_s;
    if (!oldest.while_slow) learn(oldest.size, oldest.seconds / oldest.believed_s);
  }
  judge();
  if (slow_)
    for (Step& step : latest_) step.while_slow = true;
}

void SpeedMonitor::learn(int size, double ratio) {
  std::deque<double>& ratios = ratios_[size];
  ratios.push_back(ratio);
  if (ratios.size() > known_steps) ratios.pop_front();
}

void SpeedMonitor::rest() {
  latest_.clear();
  seconds_ = usual_s_ = 0;
  slow_ = false;
}

double SpeedMonitor::factor() const { return seconds_ >= window_s && usual_s_ > 0 ? seconds_ / usual_s_ : 1; }

void SpeedMonitor::judge() {
  if (slow_) {
    slow_ = factor() >= slow_until;
    return;
  }
  const auto unusual_steps = static_cast<std::size_t>(std::ranges::count_if(latest_, [](const Step& step) {
    return step.seconds >= unusual * step.usual_s && step.seconds >= least_step_s;
  }));
  slow_ = factor() >= slow_from && (unusual_steps >= least_steps || latest_.back().seconds >= lone_step_s);
}

std::map<std::string, double> slow_devices(const std::map<std::string, SpeedMonitor>& speeds) {
  constexpr double apart = 2;
  std::map<std::string, double> slow;
  for (const auto& [device, speed] : speeds) {
    if (!speed.slow()) continue;
    std::vector<double> others;
    for (const auto& [other, its] : speeds)
      if (other != device) others.push_back(its.factor());
    if (others.empty() || speed.factor() >= apart * median(std::move(others))) slow[device] = speed.factor();
  }
  return slow;
}

}  // namespace motley
