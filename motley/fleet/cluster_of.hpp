// What the members offer, as a cluster to plan for.
#pragma once

#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/fleet/machine_status.hpp"

namespace motley {

// A machine for each member, under its name; devices in their slots. A processor is a type of its own; GPUs of one kind
// share a type where they offer about the same memory and are within 3 % as fast, and have the catalogue's rates where
// none were measured. Throws a peer error for a GPU that the catalogue does not know. Links that were not measured are
// those of `network`.
Cluster cluster_of(const std::vector<MachineStatus>& members, const std::vector<MachineLink>& links,
                   const Network& network);

// Where nothing was measured: shared memory within a machine, and 1 Gbit/s with 0.2 ms between machines.
Network assumed_network();

}  // namespace motley
