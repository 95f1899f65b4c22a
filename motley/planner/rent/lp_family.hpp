// The family of linear programs, and what their prices prove. In levels (rent_problem.hpp), for the shapes c of a pool:
//
//   sum_c g_cw t_zcw >= s_z level      every scenario z and class w; g: levels per copy, t: copies' time
//   sum_w t_zcw <= y_c                 every scenario and shape that runs in it
//   sum_c d_cn y_c <= a_n              every type n
//   sum_c o_c y_c + K o_c u_c <= B     form `budget`, which maximizes the level; `cheapest` minimizes this sum at level
//   1 y_c - u_c <= current_c             where starting costs something (K) and copies run
//
// Every variable is bounded. A shape that serves one class has t = y, and neither t nor row.
#pragma once

#include <vector>

#include "motley/planner/rent/rent_problem.hpp"
#include "motley/solve/milp.hpp"

namespace motley {

// Time of the copies in one scenario: copies x share of their time.
struct TimeShare {
  int shape = 0;
  int class_index = 0;
  double copies = 0;
};

struct Routing {
  double level = 0;                           // that all scenarios carry
  std::vector<std::vector<TimeShare>> times;  // by scenario
};

// Serves the classes with a given fleet at the greatest level, then with the least time of its copies. By the built-in
// simplex: a few shapes make a small program.
Routing route(const RentProblem& problem, const Copies& copies);

// What the programme is asked for.
enum class Aim {
  goal,      // as the form says
  capacity,  // the greatest level whatever it costs
};

struct FamilyModel {
  MilpModel milp;
  std::vector<int> shapes;          // of the pool
  std::vector<int> copies_column;   // of each
  int level_column = -1;            // share of level_bound; none where the level is fixed
  std::vector<int> class_rows;      // scenario x class
  std::vector<int> available_rows;  // by type; -1: none
  int budget_row = -1;

  Copies copies(const RentProblem& problem, const std::vector<double>& values) const;
  // The columns' values of a fleet and its routing: a start.
  std::vector<double> values(const RentProblem& problem, const Copies& copies, const Routing& routing) const;

  struct TimeColumn {
    int scenario, shape, class_index, column;
  };
  std::vector<TimeColumn> time_columns;
  std::vector<std::pair<int, int>> startup_columns;  // shape, column
};
FamilyModel build_family(const RentProblem& problem, const std::vector<int>& pool, Aim aim);

// Lets copies exceed the most that is of use: the relaxation's rows then bind instead of the columns' bounds, and their
// duals say what devices and money are worth. The bound is weaker.
void loosen(FamilyModel& family);

// Multipliers of the rows, and by Lagrange's bound what they prove, however they were found.
struct Prices {
  std::vector<double> classes;  // scenario x class: objective per level
  std::vector<double> devices;  // by type
  double money = 1;             // objective per $/h; 1 in the form `cheapest`
  // The objective to be minimized is cost, or minus the level.
  double bound = 0;
};
Prices prices_of(const RentProblem& problem, const FamilyModel& family, const std::vector<double>& row_duals);

// By how much the bound rises where one new copy of the shape is used; negative where the relaxation wants it.
double reduced_cost(const RentProblem& problem, const RentShape& shape, const Prices& prices);

}  // namespace motley
