// What the planner of renting is asked, and what it answers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "motley/cost/form/form.hpp"
#include "motley/plan/rent_plan.hpp"
#include "motley/solve/milp.hpp"

namespace motley {

enum class Comparisons { skip, made };

struct RentOptions {
  RentForm form = RentForm::budget;
  double budget_usd_per_hour = 0;  // form `budget`
  double survive = 0;              // share of the throughput that must be left when any one domain is lost
  double startup_share = 0;        // cost of starting a copy, as a share of its price until the next planning
  std::map<std::string, std::int64_t> current = {};  // copies that run, by configuration
  std::uint64_t seed = 0;                            // recorded; nothing here is random
  double deadline_s = 10;
  double relative_gap = 1e-6;
  std::int64_t pool = 400;  // configurations that the integer programme begins with, where there are more
  MilpSolver solver = MilpSolver::best;
  Comparisons comparisons = Comparisons::made;  // homogeneous fleets and slower devices, to compare with the plan
};

struct RentOutcome {
  std::optional<RentPlan> plan;
  double throughput_per_s = 0;  // 0 where there is no plan
  std::string reason;           // where there is none
  std::string hint;             // the nearest thing that would work
};

// For configurations that the cost model makes.
struct ModelRentOptions {
  double utilisation = 0.8;  // share of its rate that a copy is planned with: room for bursts
  StepLimits step = {};
  std::int64_t max_batch = 1024;          // most requests in flight per copy
  std::optional<DType> weight_type = {};  // default: the checkpoint's
  std::optional<DType> kv_type = {};      // default: as the weights
};

}  // namespace motley
