// Clusters and models for people.
#pragma once

#include <string>

#include "motley/base/value.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/model/model.hpp"

namespace motley {

// Machines with their devices, and the links between machines.
std::string cluster_report(const Cluster& cluster);
// The device catalogue: names, memory, bandwidth, FLOP/s.
std::string catalogue_report();
// Shape, parameters, bytes, FLOPs and KV bytes of a model.
std::string model_report(const Model& model);
Value model_json(const Model& model);

}  // namespace motley
