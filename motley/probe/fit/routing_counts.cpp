#include "motley/probe/fit/routing_counts.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::int64_t group_sizes[] = {1, 4, 16, largest_routing_group};
constexpr double least_gamma = 0.01;
constexpr double all_but_none = 1 - 1e-9;  // the share from which on all experts are taken

// Of groups of `size` tokens: neighbours, or with as many tokens between them as there are groups.
double mean_distinct(const std::vector<std::int32_t>& experts, std::int64_t active, std::int64_t size,
                     bool neighbours) {
  const std::int64_t groups = std::ssize(experts) / active / size;
  std::int64_t distinct = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::set<std::int32_t> taken;
    for (std::int64_t i = 0; i < size; ++i) {
      const auto first = experts.begin() + active * (neighbours ? group * size + i : group + i * groups);
      taken.insert(first, first + active);
    }
    distinct += std::ssize(taken);
  }
  return static_cast<double>(distinct) / static_cast<double>(groups);
}

}  // namespace

std::vector<ExpertCount> count_experts(const Model& model, const std::vector<TokenExperts>& layers) {
  std::vector<ExpertCount> counts;
  for (const TokenExperts& layer : layers) {
    const std::int64_t active = model.arch.kind(layer.layer).experts.active;
    MOTLEY_CHECK(active > 0 && !layer.experts.empty() &&
                 std::ssize(layer.experts) % (active * largest_routing_group) == 0);
    for (const std::int64_t size : group_sizes)
      counts.push_back({.model = model.name,
                        .layer = layer.layer,
                        .tokens = size,
                        .distinct = mean_distinct(layer.experts, active, size, false),
                        .distinct_of_prompt = mean_distinct(layer.experts, active, size, true)});
  }
  return counts;
}

std::vector<RoutingGamma> fit_gamma(const Model& model, const std::vector<ExpertCount>& counts) {
  std::vector<RoutingGamma> fitted;
  const auto fit = [&](double ExpertCount::*counted, double RoutingGamma::*gamma) {
    double independent = 1, before = 1;
    for (RoutingGamma& part : fitted) {
      double taken = 0, there = 0, untaken_by_one = 0;
      for (const ExpertCount& count : counts) {
        if (count.tokens != part.tokens) continue;
        const Experts& experts = model.arch.kind(count.layer).experts;
        taken += count.*counted;
        there += static_cast<double>(experts.count);
        untaken_by_one += static_cast<double>(experts.count - experts.active);
      }
      const double share = std::min(taken / there, all_but_none), growth = static_cast<double>(part.tokens) / before;
      const double counts_as = std::log(1 - share) / std::log(untaken_by_one / there);
      const double exponent = std::log(counts_as / independent) / std::log(growth);
      part.*gamma = std::clamp(exponent, least_gamma, 1.0);
      independent *= std::pow(growth, part.*gamma);
      before = static_cast<double>(part.tokens);
    }
  };
  for (const std::int64_t size : group_sizes)
    if (size > 1) fitted.push_back({.model = model.name, .tokens = size});
  fit(&ExpertCount::distinct, &RoutingGamma::sequences);
  fit(&ExpertCount::distinct_of_prompt, &RoutingGamma::prompt);
  return fitted;
}

}  // namespace motley
