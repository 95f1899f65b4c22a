// Frequencies of rotary position embeddings, with the scalings of long-context models.
#pragma once

#include <vector>

#include "motley/model/model.hpp"

namespace motley {

// The same numbers as `transformers` (modeling_rope_utils.py), in fp32 like there: element i of a head turns with
// element i + pairs, by the angle position * inverse_frequencies[i]; cosine and sine are multiplied by `amplitude`.
//
// Dynamic scaling follows `longest`, the longest sequence that is run: up to the context that the model was trained
// with it is the unscaled form, and beyond it every sequence has the frequencies of the longest, as in vLLM.
struct RotaryFrequencies {
  std::vector<float> inverse_frequencies;  // one per pair
  float amplitude = 1;
  bool operator==(const RotaryFrequencies&) const = default;
};
RotaryFrequencies rotary_frequencies(const Rotary& rotary, std::int64_t head_dim, std::int64_t longest = 0);
// Of each of a model's rules, for the heads that are rotated by it. Empty where positions are learned.
std::vector<RotaryFrequencies> rotary_frequencies(const Architecture& arch, std::int64_t longest);

}  // namespace motley
