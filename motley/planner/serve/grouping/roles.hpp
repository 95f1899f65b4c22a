// Prefill and decode on pipelines of their own, for clusters where some devices compute and others remember.
//
// Every group of a division gets its best pipeline for each role, and a mixed-integer programme chooses: who does both,
// who prefills, who decodes, and how many requests move from whom to whom without overloading a link.
#pragma once

#include <optional>
#include <vector>

#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {

// ---- the choice ----

enum class GroupRole { idle, both, prefill, decode };

// Requests per second that a group serves in each role; 0: it cannot.
struct RoleRates {
  double both = 0, prefill = 0, decode = 0;
};

struct LinkTime {
  int link = 0;
  double seconds = 0;  // that one request keeps it busy
};

struct RoleProblem {
  std::vector<RoleRates> groups;
  std::vector<std::vector<std::vector<LinkTime>>> moves;  // [from][to]: of a request that is decoded elsewhere
};

struct RoleFlow {
  std::size_t from = 0, to = 0;
  double requests_per_s = 0;
};

struct RoleChoice {
  std::vector<GroupRole> roles;
  std::vector<RoleFlow> flows;
  double requests_per_s = 0;  // of all groups
};

// The most requests per second.
RoleChoice choose_roles(const RoleProblem& problem, double time_limit_s);

// ---- plans ----

struct RolePlans {
  std::vector<ServePlan> plans;  // that have roles; most requests first
  // No division with roles serves more requests per second. 0 where none is possible; nothing where that is not known.
  std::optional<double> bound;
};

// Over this grouping's division, and the best one if links cost nothing, which also gives the bound; or, where there
// are too many groups for that and it is asked for, those that a person would try first.
enum class RoleDivisions { found, also_first_guesses };
RolePlans plan_roles(Groups& groups, const Grouping& grouping, RoleDivisions divisions);

// Puts the best of them that keeps the deadlines in the place of `plan` where it serves clearly more requests per
// second. Returns the bound.
std::optional<double> keep_roles_where_better(Groups& groups, const Grouping& grouping, ServePlan& plan);

// Plans worth simulating: for the deadlines as they are and for tighter ones, with long and short prompt chunks.
std::vector<ServePlan> role_candidates(Groups& groups, const Grouping& grouping);

}  // namespace motley
