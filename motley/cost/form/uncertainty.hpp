// How far a plan's figures may be off where its device types were not measured themselves: the plan is priced with
// their shares of the peaks at the slow and at the fast end of what is known.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/plan/shared.hpp"

namespace motley {

// Factors by which the shares of measured types differ at most from those that would stand for them (bench/cards_fit).
inline constexpr double compute_uncertainty = 1.7, bandwidth_uncertainty = 1.23;

// Shares that rest on other types' measurements: those for serving or those for training.
bool is_uncertain(const DeviceType& type);

enum class RangeEnd { slow, fast };
// The cluster with those shares at one end; of the type `only`, or of all types where it is empty.
Cluster at_end(Cluster cluster, RangeEnd end, const std::string& only = {});

// What a plan says of one device type of uncertain figures.
struct TypeUncertainty {
  std::string type;
  Basis basis = Basis::guess;
  int devices = 0;
  FigureRange tokens_per_s;  // of the plan, with this type's shares at either end
};

// `price` gives tokens/s of a plan, `basis_of` what the figures of a type rest on. Types on which tokens/s do not
// depend are left out.
template <class Plan, class Price, class BasisOf>
std::vector<TypeUncertainty> uncertainties_of(const Plan& plan, const Price& price, const BasisOf& basis_of) {
  constexpr double least_difference = 0.005;
  std::vector<TypeUncertainty> found;
  for (const DeviceType& type : plan.cluster.types) {
    if (!is_uncertain(type)) continue;
    const auto figure = [&](RangeEnd end) {
      Plan changed = plan;
      changed.cluster = at_end(plan.cluster, end, type.name);
      return price(changed);
    };
    const FigureRange range{figure(RangeEnd::slow), figure(RangeEnd::fast)};
    if (range.high <= (1 + least_difference) * range.low) continue;
    const auto of_type = [&](const Device& device) {
      return plan.cluster.types[static_cast<std::size_t>(device.type)].name == type.name;
    };
    found.push_back(
        {type.name, basis_of(type), static_cast<int>(std::ranges::count_if(plan.cluster.devices, of_type)), range});
  }
  return found;
}

}  // namespace motley
