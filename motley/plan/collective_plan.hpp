// The plan of kind "collective": a program per rank, and what it is expected to take on the network it was made for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "motley/plan/collective.hpp"
#include "motley/plan/plan.hpp"

namespace motley {

template <>
const std::vector<EnumName<CollectiveOperation>>& enum_names<CollectiveOperation>();
template <>
const std::vector<EnumName<CollectiveStepKind>>& enum_names<CollectiveStepKind>();

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
  Cluster cluster;     // rank = place of the device
  std::string layout;  // for people: "direct; rack0: 8 x 3"
  CollectiveProgram program;
  CollectivePrediction predicted;
  SearchRecord search;
};

Value write_collective_plan(const CollectivePlan& plan);
CollectivePlan read_collective_plan(const Value& value, std::string source);

// The program computes its collective (collective_check.hpp) and has a rank per device. Empty: nothing wrong.
std::vector<Violation> verify(const CollectivePlan& plan);

// The program of a plan file, proven to compute its collective. Throws an input error where it does not.
CollectiveProgram read_collective_program(const std::filesystem::path& file);

}  // namespace motley
