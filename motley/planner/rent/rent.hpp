// Plans renting: how many copies of which configuration, and which requests go where.
//
//   RentOutcome outcome = plan_rent(read_offers("offers.json"), {.form = RentForm::cheapest});
//   if (outcome.plan) write_file("fleet.json", to_json(write_rent_plan(*outcome.plan), 1));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/planner-rent.md: the linear family, how it is solved, what is exact and what is not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "motley/cost/form.hpp"
#include "motley/plan/rent.hpp"
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
  Comparisons comparisons = Comparisons::made;  // homogeneous fleets and slower devices beside the plan
};

struct RentOutcome {
  std::optional<RentPlan> plan;
  double throughput_per_s = 0;  // 0 where there is no plan
  std::string reason;           // where there is none
  std::string hint;             // the nearest thing that would work
};

// That nothing can be rented for the goal is an answer, not an error. Throws an input error where offers or options
// contradict themselves.
RentOutcome plan_rent(const Offers& offers, const RentOptions& options);

}  // namespace motley
