#include "motley/model/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace motley {

double yarn_amplitude(double factor, double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0; }

std::int64_t rotated_dimensions(const Rotary& rotary, std::int64_t head_dim) {
  constexpr double rounding = 1e-9;  // a share may be a quotient of the two
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary.partial + rounding);
}

std::int64_t turning_pairs(const Rotary& rotary, std::int64_t dimensions) {
  return static_cast<std::int64_t>(rotary.turning * static_cast<double>(dimensions)) / 2;
}

double llama3_kept_share(const Rotary& rotary, double wavelength) {
  const double turns = static_cast<double>(rotary.original_context) / wavelength;  // over the original context
  return std::clamp((turns - rotary.low_freq_factor) / (rotary.high_freq_factor - rotary.low_freq_factor), 0.0, 1.0);
}

std::vector<double> llama3_divisors(const Rotary& rotary, std::int64_t dimensions) {
  std::vector<double> divisors;
  for (std::int64_t i = 0; i < dimensions; i += 2) {
    const double share = static_cast<double>(i) / static_cast<double>(dimensions);
    const double kept = llama3_kept_share(rotary, 2 * std::numbers::pi * std::pow(rotary.theta, share));
    divisors.push_back(1 / ((1 - kept) / rotary.factor + kept));
  }
  return divisors;
}

}  // namespace motley
