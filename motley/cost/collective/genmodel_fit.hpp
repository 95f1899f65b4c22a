// GenModel's constants from measured collectives on one switch.
//
// Relative least squares over (alpha, 2 beta + gamma, delta, epsilon), none below 0, for every threshold w_t; the
// threshold with the least residual is kept. A byte moved twice and a byte added always come together, so that beta and
// gamma cannot be told apart; delta can, but only where groups of different sizes were measured.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/collective/genmodel.hpp"

namespace motley {

// An all_reduce of `bytes` over the product of the factors, in groups of factors[0], ...; a ring where there are none.
struct MeasuredCollective {
  int ranks = 0;
  std::vector<int> factors = {};
  double bytes = 0;
  double seconds = 0;
};

struct GenModelFit {
  double alpha_s = 0;
  double transfer_s_per_byte = 0;  // 2 beta + gamma
  double delta_s_per_byte = 0;
  double epsilon_s_per_byte = 0;
  int threshold = 0;         // 0: no incast was seen
  double residual = 0;       // root mean square of the relative errors
  double largest_error = 0;  // relative
  int measurements = 0;
  std::string date;  // of the measurements
  bool operator==(const GenModelFit&) const = default;
};

// Throws an input error where there are fewer than two fan-ins, fewer measurements than constants, or figures that are
// no measurements.
GenModelFit fit_genmodel(const std::vector<MeasuredCollective>& measured, const std::string& date);

inline constexpr double most_fit_error = 0.10;

// What can be planned with, for ports of a known speed. Throws an input error where the fit is off by more than
// most_fit_error.
GenModelConstants constants_of(const GenModelFit& fit, double beta_s_per_byte);

}  // namespace motley
