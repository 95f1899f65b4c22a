// The numbers of a renting problem, without names: what every part of the planner works on.
//
// A level is a multiple of what is asked: of the demand of every class, or where there are only shares, requests per
// second of the mix. Rates are counted in levels, so that all classes look alike.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "motley/plan/rent_plan.hpp"
#include "motley/planner/rent/rent_options.hpp"

namespace motley {

struct ClassRate {
  int class_index = 0;
  double level = 0;  // of that class, served by one copy that does nothing else
};

struct RentShape {
  int configuration = 0;  // index into the offers
  double usd_per_hour = 0;
  std::vector<std::pair<int, int>> devices;  // type, count
  std::vector<ClassRate> rates;              // positive ones
  int most = 0;                              // copies: by availability, budget and use
  int current = 0;                           // copies that start free
  std::vector<bool> lost;                    // by domain
};

// Copies of every shape of a problem.
using Copies = std::vector<int>;

struct RentProblem {
  RentForm form = RentForm::budget;
  double budget_usd_per_hour = 0;
  double survive = 0;
  double startup_share = 0;
  int classes = 0;
  int domains = 0;                // 0 where nothing must survive
  std::vector<int> available;     // by type; -1: as many as one likes
  std::vector<RentShape> shapes;  // by name
  double level_bound = 0;         // no fleet carries more; at most the demand in the form `cheapest`
  double cost_bound = 0;          // no fleet that carries level 1 costs less: form `cheapest`

  // Scenario 0 is everything running; scenario 1 + z without domain z.
  int scenarios() const { return 1 + domains; }
  double scenario_level(int scenario) const { return scenario == 0 ? 1 : survive; }
  bool runs(const RentShape& shape, int scenario) const { return scenario == 0 || !shape.lost[scenario - 1]; }
  // Of this many copies, with what starting the new ones costs.
  double cost(const RentShape& shape, double copies) const {
    return shape.usd_per_hour * (copies + startup_share * std::max(0.0, copies - shape.current));
  }
  double cost(const Copies& copies) const;
};

struct Refusal {
  std::string reason;
  std::string hint;
};

// Refused where a class has no shape that could be rented at all: seen before anything is solved.
std::variant<RentProblem, Refusal> make_problem(const Offers& offers, const RentOptions& options);

// Indices of the shapes that no other makes useless: it would use no more devices of any type, cost no more, and serve
// every class at least as fast. Shapes that run already stay. Of equal shapes the first stays.
std::vector<int> undominated(const RentProblem& problem);

// `level` of every class by money alone: sum over the classes of the cheapest shape's price. Knows no solver.
double cost_of_level(const RentProblem& problem, double level);

}  // namespace motley
