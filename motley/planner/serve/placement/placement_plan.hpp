// Between a cluster and a placement: groups of devices as nodes, and the flow's paths as routes.
#pragma once

#include <optional>
#include <vector>

#include "motley/cost/serve/flow.hpp"
#include "motley/planner/serve/pipeline/search.hpp"
#include "motley/planner/serve/placement/placement.hpp"

namespace motley {

// As a stage of a plan has them.
struct RankShares {
  std::vector<double> shares = {};
  std::vector<std::int64_t> expert_shares = {};
};

// The devices as nodes of a placement problem, with structured starts.
struct PlacementGroups {
  std::vector<TensorGroup> groups;
  std::vector<RankShares> shares;  // of every group
  PlacementProblem problem;
  std::vector<PlacedFlow> starts;  // the greatest flow first
};

// Every device by itself, and groups of 2, 4, 8, ...: one entry for each size that some machine has and the profile (if
// it knows the type) knows. A node is some devices of one type in one machine. Groups without room for a layer are left
// out.
std::vector<PlacementGroups> placement_groups(const ServeProblem& problem);
// The stages of a plan as nodes, which are also a start, and its unused devices one by one.
PlacementGroups groups_of_plan(const ServeProblem& problem, const ServePlan& plan);

// Searches from the entry with the best start; nothing where no placement covers the layers. Its rates are plan_flow's,
// its latency follows by Little's law with all routes' batches in flight. `restarts` 0: the best start as it is.
std::optional<ServePlan> plan_placement(const ServeProblem& problem, const std::vector<PlacementGroups>& all,
                                        int restarts);

// Whether every plan without shared stages is a placement of single devices, too: no machine has two, and no group
// reaches beyond one.
bool placements_include_replicas(const ServeProblem& problem);

// Leaves in `outcome` whichever plan has the greater flow, with that as its prediction. A plan of replicas that holds
// more layers somewhere than the profile has rates for does not count.
void keep_greater_flow(const ServeProblem& problem, std::optional<ServePlan> shared, ServeOutcome& outcome);

}  // namespace motley
