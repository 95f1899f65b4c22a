// Plans of kind "offload": how one device, its host's memory and its disk hold a model, and how many sequences share a
// pass over it.
//
//   const OffloadOutcome outcome = plan_offload(cluster, model, workload, {});
#pragma once

#include "motley/planner/offload/offload_options.hpp"

namespace motley {

// Exact by the form `motley`: every shape of a pass is either evaluated with every placement of whole layers, or
// excluded by a bound. docs/concepts/planner-offload.md. By the form `flexgen`: the best policy of the published model,
// whose shares are not whole layers. Throws an input error where the description lacks what the search needs.
OffloadOutcome plan_offload(const Cluster& cluster, const Model& model, const Workload& workload,
                            const OffloadOptions& options);

}  // namespace motley
