#include "motley/planner/collective/factors.hpp"

#include <algorithm>

namespace motley {
namespace {

void extend(int left, std::vector<int>& factors, std::vector<std::vector<int>>& found) {
  if (left == 1) {
    if (!factors.empty()) found.push_back(factors);
    return;
  }
  for (int factor = left; factor >= 2; --factor) {
    if (left % factor != 0) continue;
    factors.push_back(factor);
    extend(left / factor, factors, found);
    factors.pop_back();
  }
}

}  // namespace

std::vector<std::vector<int>> ordered_factorisations(int branches, std::size_t most) {
  std::vector<std::vector<int>> found;
  std::vector<int> factors;
  extend(branches, factors, found);
  std::vector<std::vector<int>> uneven;
  if (branches > 3) extend(branches + 1, factors, uneven);
  for (auto& list : uneven)
    if (list.size() > 1) found.push_back(std::move(list));
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (found.size() > most) found.resize(most);
  return found;
}

BestFactors best_factors(int ranks, const GenModelConstants& constants, double bytes) {
  BestFactors best;
  std::vector<std::vector<int>> even;
  std::vector<int> factors;
  extend(ranks, factors, even);
  for (const auto& candidate : even) {
    const double seconds = genmodel_seconds(factored_counts(candidate, constants.threshold), constants, bytes);
    if (best.factors.empty() || seconds < best.seconds) best = {candidate, seconds};
  }
  return best;
}

}  // namespace motley
