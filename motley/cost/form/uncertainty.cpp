#include "motley/cost/form/uncertainty.hpp"

namespace motley {
namespace {

bool stands_for_others(Basis basis) { return basis == Basis::generation || basis == Basis::guess; }

void scale(double& share, double factor) { share = std::min(1.0, share * factor); }

}  // namespace

bool is_uncertain(const DeviceType& type) {
  return stands_for_others(type.efficiency.basis) || stands_for_others(type.training.basis);
}

Cluster at_end(Cluster cluster, RangeEnd end, const std::string& only) {
  const double compute = end == RangeEnd::fast ? compute_uncertainty : 1 / compute_uncertainty;
  const double bandwidth = end == RangeEnd::fast ? bandwidth_uncertainty : 1 / bandwidth_uncertainty;
  for (DeviceType& type : cluster.types) {
    if (!only.empty() && type.name != only) continue;
    if (stands_for_others(type.efficiency.basis)) {
      scale(type.efficiency.compute, compute);
      scale(type.efficiency.attention_compute, compute);
      scale(type.efficiency.bandwidth, bandwidth);
      scale(type.efficiency.attention_bandwidth, bandwidth);
      scale(type.efficiency.quantised_bandwidth, bandwidth);
      scale(type.efficiency.elementwise, bandwidth);
    }
    if (stands_for_others(type.training.basis)) {
      scale(type.training.products, compute);
      scale(type.training.attention, compute);
      scale(type.training.elementwise, bandwidth);
    }
  }
  return cluster;
}

}  // namespace motley
