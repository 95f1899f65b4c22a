// What the planner of collectives is asked, and what it answers.
#pragma once

#include <cstdint>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/cost/collective/genmodel.hpp"
#include "motley/plan/collective_plan.hpp"

namespace motley {

enum class CollectiveObjective {
  pipelined,  // least time in chunks
  rounds      // least time of the rounds in sequence: GenModel's own
};
EnumNames<CollectiveObjective> names_of(Bound<CollectiveObjective>);

struct CollectiveOptions {
  CollectiveObjective objective = CollectiveObjective::pipelined;
  int root = 0;                 // of a broadcast
  std::int64_t alignment = 16;  // bytes, of the borders between ranges: a multiple of the element's size
  CollectiveCostOptions cost = {};
  std::uint64_t seed = 0;  // recorded; nothing here is random
  double deadline_s = 10;
};

struct CollectiveAnswer {
  CollectiveProgram program;
  CollectiveCost cost;
  CollectivePrediction predicted;
  std::int64_t evaluated = 0;
  bool expired = false;  // the deadline came first
};

}  // namespace motley
