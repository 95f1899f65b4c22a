// Between a cluster and a placement: groups of devices as nodes, and the flow's paths as routes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "motley/cost/flow.hpp"
#include "motley/planner/serve/placement.hpp"
#include "motley/planner/serve/search.hpp"

namespace motley {

// Nodes of one placement problem: devices of one type in one machine, `devices.size()` at a time.
struct PlacementGroups {
  std::vector<TensorGroup> groups;
  PlacementProblem problem;
};

// Every device by itself, and groups of 2, 4, 8, ...: one entry for each size that some machine has, where the profile
// (if it knows the type) knows the size. Groups without room for a layer are left out.
std::vector<PlacementGroups> placement_groups(const ServeProblem& problem);

// The plan of greatest flow; nothing where no placement covers the layers. Its rates are plan_flow's, its latency
// follows by Little's law with all routes' batches in flight.
std::optional<ServePlan> plan_placement(const ServeProblem& problem);

// Whether every plan without shared stages is a placement, too: no machine has two devices, and no group reaches
// beyond one.
bool placements_include_replicas(const ServeProblem& problem);

// Leaves in `outcome` whichever plan has the greater flow, with that as its prediction. A plan of replicas that holds
// more layers somewhere than the profile has rates for does not count.
void keep_greater_flow(const ServeProblem& problem, std::optional<ServePlan> shared, ServeOutcome& outcome);

}  // namespace motley
