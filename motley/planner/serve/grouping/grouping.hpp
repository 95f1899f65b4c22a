// The outer search: which devices form which pipeline, and which stay idle.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/planner/serve/grouping/groups.hpp"

namespace motley {

struct Grouping {
  std::vector<Pipeline> pipelines;  // best first; devices in none of them are idle
  bool exact = false;               // no other grouping of these devices into such pipelines is better
  std::int64_t evaluated = 0;
};

// What a pipeline adds to a deployment: the requests per second that it serves inside the deadlines.
double worth(const Pipeline& pipeline, Objective objective);
double total_worth(const std::vector<Pipeline>& pipelines, Objective objective);

// The whole search. No pipelines where the model fits nowhere.
Grouping search_groupings(Groups& groups);

// Every way to divide the devices, by dynamic programming over how many of each class are left: exact. Devices of a
// class are alike, so what counts of a group is how many of each it has.
bool few_enough_for_partitions(const ServeProblem& problem);
Grouping best_partition(Groups& groups);

// The groups that partitions are made of: a number of devices of every class, told by the classes' first ones.
struct ClassGroups {
  struct Group {
    std::vector<std::int64_t> takes;  // of every class
    std::vector<int> devices;
  };
  std::vector<std::vector<int>> classes;
  std::vector<Group> groups;
};
ClassGroups class_groups(const ServeProblem& problem);
// What the best partition of each of these groups' devices is worth. Clears `exact` where that is not known.
std::vector<double> most_worths(Groups& groups, bool& exact);

// Divisions that a person would try first: all devices in one pipeline, equal parts, one pipeline per site, per
// machine, per number of devices of a type and site. At least one.
std::vector<std::vector<std::vector<int>>> structured_starts(const Groups& groups);

// Local moves from a start: devices change groups, are swapped, left idle or taken up again; groups are split and
// merged. Never worse than its start. `stream`: numbers the restarts, so that each draws random numbers of its own.
struct LocalSearchLimits {
  std::int64_t proposals = 0;
  std::int64_t evaluated = 0;  // states of inner searches that this restart asked for first
};
Grouping improve(Groups& groups, std::vector<Pipeline> start, const LocalSearchLimits& limits, std::uint64_t stream);

}  // namespace motley
