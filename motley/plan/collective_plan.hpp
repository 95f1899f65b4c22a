// The plan of kind "collective": a program per rank, and what it is expected to take on the network it was made for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/plan/collective_program.hpp"
#include "motley/plan/shared.hpp"

namespace motley {

EnumNames<CollectiveOperation> names_of(Bound<CollectiveOperation>);
EnumNames<CollectiveStepKind> names_of(Bound<CollectiveStepKind>);

struct CollectivePrediction {
  double time_s = 0;       // rounds in sequence, the vector whole
  double pipelined_s = 0;  // in the plan's chunks, rounds and halves overlapping
  double steady_s = 0;     // the busiest link, its bytes alone
  double limit_s = 0;      // no plan on this network is below
  double efficiency = 0;   // limit_s / pipelined_s
  std::string binding_cut;
  bool operator==(const CollectivePrediction&) const = default;
};

struct CollectivePlan {
  static constexpr PlanKind kind{"collective", "motley plan allreduce"};

  Cluster cluster;  // rank = place of the device
  CollectiveProgram program;
  CollectivePrediction predicted;
  SearchRecord search;
  bool operator==(const CollectivePlan&) const = default;
};
Schema<CollectivePlan> schema_of(Bound<CollectivePlan>);

// Proves that a program computes its collective, by running it on sets of ranks instead of numbers: every range of
// every rank's result holds each rank's contribution exactly once (all_reduce, reduce_scatter), or the right rank's
// (all_gather, broadcast); sends and receives pair off; no step waits forever, also where a send waits for its
// receiver only. Exact, in O(ranks^2 / 64) per byte range that steps tell apart. Empty: nothing wrong; at most a few
// violations are listed.
std::vector<Violation> check_program(const CollectiveProgram& program);

// The program computes its collective (check_program()) and has a rank per device. Empty: nothing wrong.
std::vector<Violation> verify(const CollectivePlan& plan);

// The program of a plan file, proven to compute its collective. Throws an input error where it does not.
CollectiveProgram read_collective_program(const std::filesystem::path& file);

}  // namespace motley
