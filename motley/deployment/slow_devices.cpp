#include "motley/deployment/slow_devices.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

constexpr double lasts_s = 2, between_looks_s = 60, away_s = 60;
constexpr double another = 2;  // times faster or slower than believed: worth to look again
constexpr int most_doublings = 6;

}  // namespace

bool SlowDevices::note(const std::map<std::string, double>& seen, const std::set<std::string>& serving, double now_s) {
  for (const auto& [device, factor] : seen) {
    Known& known = known_[device];
    const bool as_believed = factor < another * known.factor && known.factor < another * factor;
    if (as_believed) known.seen_s.reset();
    if (as_believed || now_s - *(known.seen_s = known.seen_s.value_or(now_s)) < lasts_s) continue;
    if (known.factor == 1) ++known.times;
    known = {.factor = factor, .since_s = now_s, .times = known.times};
    changed_ = true;
  }
  for (auto& [device, known] : known_) {
    if (seen.contains(device)) continue;
    known.seen_s.reset();
    if (known.factor == 1) continue;
    const double out_s =
        serving.contains(device) ? away_s : away_s * std::exp2(std::min(known.times - 1, most_doublings));
    if (now_s - known.since_s < out_s) continue;
    known.factor = 1;
    changed_ = true;
  }
  if (!changed_ || now_s < next_look_s_) return false;
  changed_ = false;
  next_look_s_ = now_s + between_looks_s;
  return true;
}

std::map<std::string, double> SlowDevices::factors() const {
  std::map<std::string, double> factors;
  for (const auto& [device, known] : known_)
    if (known.factor > 1) factors[device] = known.factor;
  return factors;
}

}  // namespace motley
