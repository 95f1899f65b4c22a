#include "motley/engine/ops/rotary_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace motley {
namespace {

constexpr double turn = 2 * std::numbers::pi;

float llama3_frequency(const Rotary& rotary, float frequency) {
  const double slowed = static_cast<double>(frequency) / rotary.factor;
  const double kept = llama3_kept_share(rotary, turn / static_cast<double>(frequency));
  return static_cast<float>((1 - kept) * slowed + kept * static_cast<double>(frequency));
}

// YaRN (arXiv 2309.00071): pairs that turn often over the original context keep their frequency, those that turn rarely
// are slowed by the factor, with a linear ramp over the pairs between.
struct YarnRamp {
  double low, high;

  YarnRamp(const Rotary& rotary, double dim) {
    const auto pair_of = [&](double turns) {
      return dim * std::log(static_cast<double>(rotary.original_context) / (turns * turn)) /
             (2 * std::log(rotary.theta));
    };
    low = pair_of(rotary.beta_fast);
    high = pair_of(rotary.beta_slow);
    if (rotary.whole_pairs) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;
  }
  double slowed(std::size_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

// NTK-aware scaling: the base grows with the longest sequence, once that is longer than the model was trained with.
double dynamic_theta(const Rotary& rotary, double dim, std::int64_t longest) {
  if (longest <= rotary.original_context || dim <= 2) return rotary.theta;
  const double stretch = static_cast<double>(longest) / static_cast<double>(rotary.original_context);
  return rotary.theta * std::pow(rotary.factor * stretch - (rotary.factor - 1), dim / (dim - 2));
}

}  // namespace

RotaryFrequencies rotary_frequencies(const Rotary& rotary, std::int64_t head_dim, std::int64_t longest) {
  const std::int64_t dim = rotated_dimensions(rotary, head_dim);
  const double theta = rotary.scaling == RotaryScaling::dynamic
                           ? dynamic_theta(rotary, static_cast<double>(dim), longest)
                           : rotary.theta;
  RotaryFrequencies out;
  for (std::int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    out.inverse_frequencies.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  std::fill(out.inverse_frequencies.begin() + turning_pairs(rotary, dim), out.inverse_frequencies.end(), 0.0f);
  switch (rotary.scaling) {
    case RotaryScaling::none:
    case RotaryScaling::dynamic: break;
    case RotaryScaling::linear:
      for (float& frequency : out.inverse_frequencies) frequency /= static_cast<float>(rotary.factor);
      break;
    case RotaryScaling::llama3:
      for (float& frequency : out.inverse_frequencies) frequency = llama3_frequency(rotary, frequency);
      break;
    case RotaryScaling::yarn: {
      const YarnRamp ramp(rotary, static_cast<double>(dim));
      for (std::size_t pair = 0; pair < out.inverse_frequencies.size(); ++pair) {
        const double slowed = ramp.slowed(pair), frequency = static_cast<double>(out.inverse_frequencies[pair]);
        out.inverse_frequencies[pair] =
            static_cast<float>(frequency / rotary.factor * slowed + frequency * (1 - slowed));
      }
      out.amplitude =
          static_cast<float>(rotary.attention_factor > 0 ? rotary.attention_factor : yarn_amplitude(rotary.factor));
    }
  }
  return out;
}

std::vector<RotaryFrequencies> rotary_frequencies(const Architecture& arch, std::int64_t longest) {
  std::vector<RotaryFrequencies> all;
  if (arch.position != PositionKind::rotary) return all;
  for (std::size_t rule = 0; rule < arch.rotaries.size(); ++rule)
    all.push_back(rotary_frequencies(arch.rotaries[rule], arch.kind_of_rotary(rule).head_dim, longest));
  return all;
}

}  // namespace motley
