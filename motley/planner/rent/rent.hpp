// Plans renting: how many copies of which configuration, and which requests go where.
//
//   RentOutcome outcome = plan_rent(read_offers("offers.json"), {.form = RentForm::cheapest});
//   if (outcome.plan) write_file("fleet.json", to_json(write(*outcome.plan), 1));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/planner-rent.md: the linear family, how it is solved, what is exact and what is not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "motley/cost/form/form.hpp"
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

// For configurations that the cost model makes.
struct ModelRentOptions {
  double utilisation = 0.8;  // share of its rate that a copy is planned with: room for bursts
  StepLimits step = {};
  std::int64_t max_batch = 256;           // most requests in flight per copy
  std::optional<DType> weight_type = {};  // default: the checkpoint's
  std::optional<DType> kv_type = {};      // default: as the weights
};

// That nothing can be rented for the goal is an answer, not an error. Throws an input error where offers or options
// contradict themselves.
RentOutcome plan_rent(const Offers& offers, const RentOptions& options);

// The same with configurations made for the model from the market's types (names of the device catalogue). Classes and
// demand are the workload's. Shapes of two types are made on demand: those that the relaxation's prices, and a bound of
// their rates, do not rule out.
RentOutcome plan_rent(const Offers& market, const Model& model, const Workload& workload, const RentOptions& options,
                      const ModelRentOptions& model_options);

// Every type of the catalogue that has a price, as many as one likes.
Offers catalogue_market();

}  // namespace motley
