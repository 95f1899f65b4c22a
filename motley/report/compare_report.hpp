// Plans of one kind side by side.
#pragma once

#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

template <class Plan>
struct NamedPlan {
  std::string name;
  const Plan* plan = nullptr;
};

// One column per plan; figures of later plans also relative to the first.
std::string compare_report(const std::vector<NamedPlan<ServePlan>>& plans);

// {plans [{name, routes, stages, devices, idle, tokens_per_s, ..., relative {tokens_per_s, ...}}]}
Value compare_json(const std::vector<NamedPlan<ServePlan>>& plans);

// What the cluster's machines cost, or where a machine has no price its devices; 0 where some device has none.
double usd_per_hour(const Cluster& cluster);

}  // namespace motley
