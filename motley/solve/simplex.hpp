// A bounded dual simplex on a dense table, made to be asked again and again with other bounds.
//
// Columns and the activities of rows are variables alike: first the columns, then the rows. Each is bounded on both
// sides, so that any basis becomes dual feasible by putting every nonbasic variable at the bound that its reduced cost
// prefers: there is no first phase, and after a change of bounds the search goes on from the basis it has. Basic
// variables are linear in the nonbasic ones, x_B = T x_N; T is the table. Rows of T that have no entry in the pivot's
// column are not touched by it.
//
// Ratio test: long steps, in which variables jump from bound to bound while the infeasibility outlasts them. Where the
// objective stalls, reduced costs are shifted by a little and put right at the end.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/solve/milp.hpp"

namespace motley {

class Simplex {
 public:
  enum class End { optimal, infeasible, cutoff, limit };

  // The relaxation of the model, to be minimized (costs of a maximum are negated).
  explicit Simplex(const MilpModel& model);

  void set_bounds(int column, double lower, double upper);
  double lower(int column) const { return lower_[column]; }
  double upper(int column) const { return upper_[column]; }

  // Least cost under the present bounds. `cutoff`: it is enough to know that the cost is not below.
  End run(double cutoff, Instant deadline);

  double value(int variable) const { return value_[variable]; }
  double objective() const;
  // A lower bound of the objective for any basis: the sum of reduced costs at their better bounds.
  double bound() const;
  // Of all variables, in their order; 0 where basic.
  std::vector<double> reduced_costs() const;
  std::int64_t pivots() const { return pivots_; }

 private:
  struct Entering {
    int position = -1;
    std::vector<int> flipped;  // positions
  };

  double* row(int i) { return table_.data() + static_cast<std::size_t>(i) * columns_; }
  const double* row(int i) const { return table_.data() + static_cast<std::size_t>(i) * columns_; }
  void place_nonbasic();
  int leaving() const;
  Entering entering(int row, bool increase) const;
  void step(int row, const Entering& chosen, bool increase);
  void pivot(int row, int position);
  void shift_costs();
  bool rebuild();
  double residual() const;

  const MilpModel& model_;
  std::size_t columns_, rows_;
  std::vector<double> cost_, lower_, upper_, value_;
  std::vector<int> basic_, nonbasic_;  // variable of every row, of every position
  std::vector<double> table_;          // rows x columns; then a row of reduced costs
  std::vector<double> working_;        // reduced costs with their shifts
  std::vector<int> touched_;           // positions in the pivot's row
  std::int64_t pivots_ = 0, since_rebuild_ = 0;
};

}  // namespace motley
