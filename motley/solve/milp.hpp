// Linear programs, with or without integer columns: one model, several solvers, one checker.
//
//   MilpModel model{.sense = Sense::maximize};
//   const int x = model.add_column({.cost = 3, .upper = 4, .integer = true});
//   const int y = model.add_column({.cost = 2, .upper = 10});
//   model.add_row({.upper = 7.5, .entries = {{x, 1}, {y, 1}}});
//   MilpAnswer answer = solve_milp(model, {});     // optimal, 19 at (4, 3.5)
//
// Every column is bounded on both sides: solvers have returned wrong optima where one was not. No answer leaves
// solve_milp() that is not feasible by check_milp(), and its objective is recomputed from its values.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

enum class Sense { minimize, maximize };

struct MilpColumn {
  double cost = 0;
  double lower = 0;
  double upper = 0;
  bool integer = false;
};

struct MilpEntry {
  int column = 0;
  double value = 0;
};

// lower <= sum of entries <= upper; either side may be infinite. A column stands in a row once.
struct MilpRow {
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
  std::vector<MilpEntry> entries = {};
};

struct MilpModel {
  Sense sense = Sense::minimize;
  std::vector<MilpColumn> columns = {};
  std::vector<MilpRow> rows = {};

  int add_column(MilpColumn column) {
    columns.push_back(column);
    return static_cast<int>(columns.size()) - 1;
  }
  int add_row(MilpRow row) {
    rows.push_back(std::move(row));
    return static_cast<int>(rows.size()) - 1;
  }
};

enum class MilpSolver {
  best,     // built in while the model proves small, then HiGHS where there is one
  highs,    // throws an environment error where it was not
  built_in  // bounded dual simplex and branch and bound: for models of some hundred rows
};

enum class Integrality { kept, relaxed };

struct MilpOptions {
  MilpSolver solver = MilpSolver::best;
  Integrality integrality = Integrality::kept;
  double time_limit_s = 10;
  double relative_gap = 1e-6;      // of the objective; 0: exact up to the tolerances
  std::int64_t node_limit = 0;     // of branch and bound; 0: none. Unlike time, it leaves the answer deterministic
  std::vector<double> start = {};  // a solution to begin with; one that is not feasible is not used
};

enum class MilpStatus {
  optimal,     // within the gap
  feasible,    // stopped by a limit with a solution
  infeasible,  // there is none
  none         // stopped by a limit without a solution, or the solver's answer did not pass the check
};

struct MilpAnswer {
  MilpStatus status = MilpStatus::none;
  double objective = 0;
  double bound = 0;                        // no solution is better, as the solver says
  std::vector<double> values = {};         // of the columns; empty where there is no solution
  std::vector<double> row_duals = {};      // relaxed only: change of the objective per unit of the row's active side
  std::vector<double> reduced_costs = {};  // relaxed only
  std::int64_t nodes = 0;
  bool has_solution() const { return !values.empty(); }
};

// Throws an internal error where the model is malformed: an unbounded column, an unknown one, a number that is none.
MilpAnswer solve_milp(const MilpModel& model, const MilpOptions& options);

bool highs_available();

// The largest violation of a bound, a row (relative to the size of its terms) or an integrality. Knows no solver.
double check_milp(const MilpModel& model, const std::vector<double>& values, Integrality integrality);
double milp_objective(const MilpModel& model, const std::vector<double>& values);

// What a solution may miss of its rows and bounds, relative.
inline constexpr double milp_tolerance = 1e-6;

}  // namespace motley
