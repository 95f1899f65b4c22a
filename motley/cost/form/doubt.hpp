// How far a plan's figures may be off where its device types were not measured themselves: the plan is priced with
// their shares of the peaks at the slow and at the fast end of what is known.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/plan/shared.hpp"

namespace motley {

// Factors by which the shares of measured types differ at most from those that would stand for them (bench/cards_fit).
inline constexpr double compute_doubt = 1.7, bandwidth_doubt = 1.23;

// Shares that rest on other types' measurements: those for serving or those for training.
bool is_doubtful(const DeviceType& type);

enum class DoubtEnd { slow, fast };
// The cluster with those shares at one end; of the type `only`, or of all types where it is empty.
Cluster at_end(Cluster cluster, DoubtEnd end, const std::string& only = {});

// What a plan says of one doubtful device type.
struct TypeDoubt {
  std::string type;
  Basis basis = Basis::guess;
  int devices = 0;
  FigureRange tokens_per_s;  // of the plan, with this type's shares at either end
};

// `price` gives tokens/s of a plan, `basis_of` what the figures of a type rest on. Types on which tokens/s do not
// depend are left out.
template <class Plan, class Price, class BasisOf>
std::vector<TypeDoubt> doubts_of(const Plan& plan, const Price& price, const BasisOf& basis_of) {
  constexpr double least_difference = 0.005;
  std::vector<TypeDoubt> doubts;
  for (const DeviceType& type : plan.cluster.types) {
    if (!is_doubtful(type)) continue;
    const auto figure = [&](DoubtEnd end) {
      Plan changed = plan;
      changed.cluster = at_end(plan.cluster, end, type.name);
      return price(changed);
    };
    const FigureRange range{figure(DoubtEnd::slow), figure(DoubtEnd::fast)};
    if (range.high <= (1 + least_difference) * range.low) continue;
    const auto of_type = [&](const Device& device) {
      return plan.cluster.types[static_cast<std::size_t>(device.type)].name == type.name;
    };
    doubts.push_back(
        {type.name, basis_of(type), static_cast<int>(std::ranges::count_if(plan.cluster.devices, of_type)), range});
  }
  return doubts;
}

}  // namespace motley
