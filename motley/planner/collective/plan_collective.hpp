// Plans collectives: which rank sends what to whom, so that a network is used to its limit.
//
//   CollectivePlan plan = plan_collective(read_cluster("cluster.toml"), CollectiveOperation::all_reduce, 400'000'000,
//   {}); write_file("plan.json", to_json(write(plan)));
//
// docs/concepts/collective-planner.md: the cost, the candidates, what is exact and what is not.
#pragma once

#include "motley/planner/collective/collective_options.hpp"

namespace motley {

// Throws an input error where the bytes do not suit the ranks, or the root is none.
CollectivePlan plan_collective(const Cluster& cluster, CollectiveOperation operation, std::int64_t bytes,
                               const CollectiveOptions& options);

CollectiveAnswer plan_collective(const CollectiveNetwork& network, CollectiveOperation operation, std::int64_t bytes,
                                 const CollectiveOptions& options);

}  // namespace motley
