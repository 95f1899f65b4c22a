// Rotary embeddings: by which frequencies pairs of a head are turned.
#pragma once

#include <cstdint>
#include <vector>

namespace motley {

// Frequency scaling, as in Hugging Face's `rope_scaling` / `rope_parameters`.
enum class RotaryScaling { none, linear, dynamic, llama3, yarn };
struct Rotary {
  double theta = 10000;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double attention_factor = 0;  // 0: derived (yarn)
  double beta_fast = 32, beta_slow = 1;
  bool whole_pairs = true;  // yarn: its ramp begins and ends at whole ones
  std::int64_t original_context = 0;
  double partial = 1;  // share of each head that is rotated: its first dimensions
  double turning = 1;  // share of their pairs that do turn: the first ones; the others' frequency is 0 (Gemma 4)
  bool operator==(const Rotary&) const = default;
};

// What YaRN (arXiv 2309.00071) multiplies sines and cosines by in place of a temperature on the attention, where the
// context is stretched by this factor.
double yarn_amplitude(double factor, double scale = 1);

// Of a head's dimensions, how many are rotated: the first ones.
std::int64_t rotated_dimensions(const Rotary& rotary, std::int64_t head_dim);

// Of the pairs of that many rotated dimensions, how many turn: the first ones.
std::int64_t turning_pairs(const Rotary& rotary, std::int64_t dimensions);

// Llama 3's rule: long waves are slowed by the factor, short ones kept, those between blended. The share of a frequency
// of this wavelength that is kept: 0 to 1.
double llama3_kept_share(const Rotary& rotary, double wavelength);
// What that rule divides the frequency of each pair by, of a head with this many rotated dimensions.
std::vector<double> llama3_divisors(const Rotary& rotary, std::int64_t dimensions);

}  // namespace motley
