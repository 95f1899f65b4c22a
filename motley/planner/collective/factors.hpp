// Which groups a switch's branches can be merged in.
#pragma once

#include <vector>

#include "motley/cost/collective/genmodel.hpp"

namespace motley {

// Ordered factorisations of `branches` into factors of at least 2, and of one more (the last groups are then one
// short), at most `most` of them, shorter ones first.
std::vector<std::vector<int>> ordered_factorisations(int branches, std::size_t most);

// The cheapest on one switch whose ports are alike, by the closed forms: the factors of gentree's tables.
struct BestFactors {
  std::vector<int> factors;
  double seconds = 0;
};
BestFactors best_factors(int ranks, const GenModelConstants& constants, double bytes);

}  // namespace motley
