// In which groups the owners of gradients add them up.
#pragma once

#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/plan/collective_programs.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// Ranks are places in `devices`, which are devices of the cluster. `ring` goes round in the cluster's order;
// `hierarchical` has a group for each machine with several of them, and one for each site with several machines.
CollectiveGroup sync_group(const Cluster& cluster, SyncAlgorithm algorithm, const std::vector<int>& devices);

}  // namespace motley
