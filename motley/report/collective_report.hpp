// Collective plans for people.
#pragma once

#include <string>
#include <vector>

#include "motley/plan/collective_plan.hpp"
#include "motley/report/compare_report.hpp"

namespace motley {

// What the plan does, what it takes, how far that is from the network's limit, who is busiest.
std::string collective_report(const CollectivePlan& plan);

// One line: "all_reduce of 400 MB over 8 ranks in 20 chunks: direct".
std::string collective_summary(const CollectivePlan& plan);

// What a rank sends, receives and adds over the whole vector.
struct RankTraffic {
  double sent = 0, received = 0, added = 0, messages = 0;
  bool operator==(const RankTraffic&) const = default;
};
std::vector<RankTraffic> rank_traffic(const CollectiveProgram& program);
// Bytes over the whole vector from every rank (row) to every other.
std::vector<std::vector<double>> pair_bytes(const CollectiveProgram& program);

// Plans side by side, and relative to the first.
std::string compare_report(const std::vector<NamedPlan<CollectivePlan>>& plans);
Value compare_json(const std::vector<NamedPlan<CollectivePlan>>& plans);

}  // namespace motley
