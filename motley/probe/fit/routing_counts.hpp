// From the experts that the tokens of a text took, how many a step takes, and the exponents by which steps are priced
// (touched_share() in cost/serve/step.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/cluster/profile.hpp"
#include "motley/model/model.hpp"

namespace motley {

// Groups of the largest size divide the text.
inline constexpr std::int64_t largest_routing_group = 64;

// Experts of a layer, those of each token together, in the order of the text.
struct TokenExperts {
  std::int64_t layer = 0;
  std::vector<std::int32_t> experts;
};

// For steps of 1, 4, 16 and 64 tokens the mean over the whole text, of neighbours, which stand for one prompt, and of
// tokens as far apart as the text allows, which stand for unlike sequences.
std::vector<ExpertCount> count_experts(const Model& model, const std::vector<TokenExperts>& layers);

// Of counts of one model, by the mean over its layers: it passes through all of them.
std::vector<RoutingGamma> fit_gamma(const Model& model, const std::vector<ExpertCount>& counts);

}  // namespace motley
