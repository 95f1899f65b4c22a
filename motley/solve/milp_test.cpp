#include "motley/solve/milp.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/solve/cbc_test.hpp"

namespace motley {
namespace {

std::vector<MilpSolver> solvers() {
  std::vector<MilpSolver> list = {MilpSolver::built_in};
  if (highs_available()) list.push_back(MilpSolver::highs);
  return list;
}

// Numbers drawn in a row.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  double between(double low, double high) { return low + (high - low) * uniform_at(seed_, index_++); }
  int integer(int low, int high) { return low + static_cast<int>(uniform_at(seed_, index_++) * (high - low + 1)); }

 private:
  std::uint64_t seed_, index_ = 0;
};

// Knapsacks, covers and equations over few columns; some have no solution.
MilpModel random_model(std::uint64_t seed, int most_columns, int most_rows, int largest) {
  Draw draw(seed);
  MilpModel model{.sense = draw.integer(0, 1) == 0 ? Sense::minimize : Sense::maximize};
  const int columns = draw.integer(1, most_columns), rows = draw.integer(1, most_rows);
  for (int j = 0; j < columns; ++j) {
    const double lower = draw.integer(-2, 1);
    model.add_column({.cost = draw.between(-5, 5),
                      .lower = lower,
                      .upper = lower + draw.integer(0, largest),
                      .integer = draw.integer(0, 2) > 0});
  }
  for (int i = 0; i < rows; ++i) {
    MilpRow row;
    for (int j = 0; j < columns; ++j)
      if (draw.integer(0, 2) > 0) row.entries.push_back({j, std::round(draw.between(-4, 6) * 4) / 4});
    const double middle = draw.between(-3, 8);
    const int kind = draw.integer(0, 2);
    if (kind != 0) row.upper = middle + draw.between(0, 4);
    if (kind != 1) row.lower = middle - draw.between(0, 4);
    model.add_row(std::move(row));
  }
  return model;
}

TEST(Milp, TheExampleOfTheHeader) {
  for (const MilpSolver solver : solvers()) {
    MilpModel model{.sense = Sense::maximize};
    const int x = model.add_column({.cost = 3, .upper = 4, .integer = true});
    const int y = model.add_column({.cost = 2, .upper = 10});
    model.add_row({.upper = 7.5, .entries = {{x, 1}, {y, 1}}});
    const MilpAnswer answer = solve_milp(model, {.solver = solver});
    EXPECT_EQ(answer.status, MilpStatus::optimal);
    EXPECT_NEAR(answer.objective, 19, 1e-9);
    EXPECT_NEAR(answer.values[0], 4, 1e-9);
    EXPECT_NEAR(answer.values[1], 3.5, 1e-9);
    EXPECT_GE(answer.bound, 19 - 1e-6);
  }
}

TEST(Milp, SolversAgreeOnRandomModels) {
  int solved = 0, infeasible = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const MilpModel model = random_model(seed, 9, 6, 5);
    const MilpAnswer reference = solve_cbc(model);
    for (const MilpSolver solver : solvers()) {
      const MilpAnswer answer = solve_milp(model, {.solver = solver, .relative_gap = 1e-9});
      ASSERT_EQ(answer.status, reference.status) << "seed " << seed << " solver " << static_cast<int>(solver);
      if (!answer.has_solution()) continue;
      EXPECT_NEAR(answer.objective, reference.objective, 1e-5 * std::max(1.0, std::abs(reference.objective)))
          << "seed " << seed << " solver " << static_cast<int>(solver);
    }
    ++(reference.has_solution() ? solved : infeasible);
  }
  EXPECT_GT(solved, 150);
  EXPECT_GT(infeasible, 30);
}

TEST(Milp, RelaxationsAgreeAndTheirDualsAreTheOptimum) {
  int solved = 0;
  for (std::uint64_t seed = 1000; seed < 1200; ++seed) {
    const MilpModel model = random_model(seed, 25, 15, 8);
    std::optional<double> first;
    for (const MilpSolver solver : solvers()) {
      const MilpAnswer answer = solve_milp(model, {.solver = solver, .integrality = Integrality::relaxed});
      if (!answer.has_solution()) {
        EXPECT_EQ(answer.status, MilpStatus::infeasible);
        EXPECT_FALSE(first) << "seed " << seed;
        continue;
      }
      ++solved;
      const double expected = first.value_or(answer.objective);
      EXPECT_NEAR(answer.objective, expected, 1e-6 * std::max(1.0, std::abs(expected))) << "seed " << seed;
      first = answer.objective;
      // Strong duality: reduced costs at their bounds and duals at the rows' active sides make up the objective.
      double dual = 0;
      for (std::size_t j = 0; j < model.columns.size(); ++j) dual += answer.reduced_costs[j] * answer.values[j];
      for (std::size_t i = 0; i < model.rows.size(); ++i) {
        double activity = 0;
        for (const auto& entry : model.rows[i].entries) activity += entry.value * answer.values[entry.column];
        dual += answer.row_duals[i] * activity;
        const bool active = activity < model.rows[i].lower + 1e-6 || activity > model.rows[i].upper - 1e-6;
        EXPECT_TRUE(active || std::abs(answer.row_duals[i]) < 1e-7) << "seed " << seed;
      }
      EXPECT_NEAR(dual, answer.objective, 1e-6 * std::max(1.0, std::abs(dual))) << "seed " << seed;
      for (std::size_t j = 0; j < model.columns.size(); ++j) {
        double reduced = model.columns[j].cost;
        for (std::size_t i = 0; i < model.rows.size(); ++i)
          for (const auto& entry : model.rows[i].entries)
            if (entry.column == static_cast<int>(j)) reduced -= answer.row_duals[i] * entry.value;
        EXPECT_NEAR(reduced, answer.reduced_costs[j], 1e-6) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(solved, 100);
}

TEST(Milp, AKnapsackLargeEnoughForTheTreeEqualsDynamicProgramming) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Draw draw(seed);
    const int capacity = 150;
    std::vector<double> best(capacity + 1, 0);
    MilpModel model{.sense = Sense::maximize};
    MilpRow row{.upper = capacity};
    for (int j = 0; j < 30; ++j) {
      const int weight = draw.integer(5, 40);
      const double worth = weight * draw.between(0.9, 1.1);
      row.entries.push_back({model.add_column({.cost = worth, .upper = 1, .integer = true}), double(weight)});
      for (int c = capacity; c >= weight; --c) best[c] = std::max(best[c], best[c - weight] + worth);
    }
    model.add_row(std::move(row));
    for (const MilpSolver solver : solvers()) {
      const MilpAnswer answer = solve_milp(model, {.solver = solver, .relative_gap = 1e-9});
      EXPECT_EQ(answer.status, MilpStatus::optimal);
      EXPECT_NEAR(answer.objective, best[capacity], 1e-6);
      EXPECT_LE(answer.objective, answer.bound + 1e-6);
    }
  }
}

TEST(Milp, LimitsKeepTheStartAndAValidBound) {
  MilpModel model{.sense = Sense::maximize};
  MilpRow row{.upper = 50};
  Draw draw(7);
  for (int j = 0; j < 40; ++j)
    row.entries.push_back(
        {model.add_column({.cost = draw.between(1, 2), .upper = 3, .integer = true}), draw.between(1, 9)});
  model.add_row(std::move(row));
  std::vector<double> start(40, 0);
  start[0] = 1;
  const double truth = solve_milp(model, {.relative_gap = 1e-9}).objective;
  const MilpAnswer stopped = solve_milp(model, {.solver = MilpSolver::built_in, .node_limit = 2, .start = start});
  EXPECT_EQ(stopped.status, MilpStatus::feasible);
  EXPECT_GE(stopped.objective, model.columns[0].cost);
  EXPECT_GE(stopped.bound, truth - 1e-9);
  const MilpAnswer late = solve_milp(model, {.solver = MilpSolver::built_in, .time_limit_s = 0, .start = start});
  EXPECT_TRUE(late.has_solution());
}

TEST(Milp, AStartThatIsNotFeasibleIsNotUsed) {
  MilpModel model;
  const int x = model.add_column({.cost = 1, .upper = 9, .integer = true});
  model.add_row({.lower = 2.5, .entries = {{x, 1}}});
  for (const MilpSolver solver : solvers()) {
    const MilpAnswer answer = solve_milp(model, {.solver = solver, .start = {2}});
    EXPECT_EQ(answer.values, std::vector<double>{3});
  }
}

TEST(Milp, TheCheckerSeesEachKindOfViolation) {
  MilpModel model;
  const int x = model.add_column({.cost = 1, .upper = 4, .integer = true});
  const int y = model.add_column({.cost = 1, .upper = 4});
  model.add_row({.lower = 1, .upper = 5, .entries = {{x, 1}, {y, 1}}});
  EXPECT_EQ(check_milp(model, {2, 2.5}, Integrality::kept), 0);
  EXPECT_NEAR(check_milp(model, {2.25, 2}, Integrality::kept), 0.25, 1e-12);
  EXPECT_EQ(check_milp(model, {2.25, 2}, Integrality::relaxed), 0);
  EXPECT_GT(check_milp(model, {4, 2}, Integrality::kept), 0.2);  // row
  EXPECT_GT(check_milp(model, {5, 0}, Integrality::kept), 0.1);  // bound
  EXPECT_GT(check_milp(model, {0, 0}, Integrality::kept), 0.9);  // row's lower side
}

TEST(Milp, UnboundedColumnsAreRefused) {
  MilpModel model;
  model.add_column({.cost = -1, .upper = std::numeric_limits<double>::infinity()});
  EXPECT_THROW(solve_milp(model, {}), Error);
}

}  // namespace
}  // namespace motley
