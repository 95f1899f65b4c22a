// Plans collectives: which rank sends what to whom, so that a network is used to its limit.
//
//   CollectivePlan plan = plan_collective(read_cluster("cluster.toml"), CollectiveOperation::all_reduce, 400'000'000,
//   {}); write_file("plan.json", to_json(write(plan)));
//
// docs/collective-planner.md: the cost, the candidates, what is exact and what is not.
#pragma once

#include <cstdint>
#include <string>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/cost/collective/genmodel.hpp"
#include "motley/plan/collective.hpp"

namespace motley {

enum class CollectiveObjective {
  pipelined,  // least time in chunks
  rounds      // least time of the rounds in sequence: GenModel's own
};
template <>
const std::vector<EnumName<CollectiveObjective>>& enum_names<CollectiveObjective>();

struct CollectiveOptions {
  CollectiveObjective objective = CollectiveObjective::pipelined;
  int root = 0;                 // of a broadcast
  std::int64_t alignment = 16;  // bytes, of the borders between ranges: a multiple of the element's size
  CollectiveCostOptions cost = {};
  std::uint64_t seed = 0;  // recorded; nothing here is random
  double deadline_s = 10;
};

// Throws an input error where the bytes do not suit the ranks, or the root is none.
CollectivePlan plan_collective(const Cluster& cluster, CollectiveOperation operation, std::int64_t bytes,
                               const CollectiveOptions& options);

struct CollectiveAnswer {
  CollectiveProgram program;
  CollectiveCost cost;
  CollectivePrediction predicted;
  std::int64_t evaluated = 0;
  bool expired = false;  // the deadline came first
};

CollectiveAnswer plan_collective(const CollectiveNetwork& network, CollectiveOperation operation, std::int64_t bytes,
                                 const CollectiveOptions& options);

}  // namespace motley
