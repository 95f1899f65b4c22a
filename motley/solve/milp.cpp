#include "motley/solve/milp.hpp"

#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/solve/milp_solvers.hpp"

namespace motley {
namespace {

void check_model(const MilpModel& model) {
  for (const auto& column : model.columns) {
    MOTLEY_CHECK(std::isfinite(column.cost) && std::isfinite(column.lower) && std::isfinite(column.upper));
    MOTLEY_CHECK(column.lower <= column.upper);
  }
  std::vector<std::size_t> seen(model.columns.size(), 0);  // 1 + the last row that names the column
  for (std::size_t i = 0; i < model.rows.size(); ++i) {
    MOTLEY_CHECK(model.rows[i].lower <= model.rows[i].upper);
    for (const auto& entry : model.rows[i].entries) {
      MOTLEY_CHECK(entry.column >= 0 && entry.column < static_cast<int>(model.columns.size()));
      MOTLEY_CHECK(std::isfinite(entry.value) && seen[entry.column] != i + 1);
      seen[entry.column] = i + 1;
    }
  }
}

#ifdef MOTLEY_WITH_HIGHS
// Most small models are solved before HiGHS would have begun; what is not after some nodes is not small.
constexpr std::int64_t first_nodes = 4000;
constexpr std::size_t first_table = 2'000'000;  // entries

MilpAnswer run_best(const MilpModel& model, const MilpOptions& options) {
  if (model.rows.size() * model.columns.size() > first_table) return solve_highs(model, options);
  const auto start = Clock::now();
  MilpOptions first = options;
  first.node_limit = options.node_limit > 0 ? std::min(options.node_limit, first_nodes) : first_nodes;
  MilpAnswer answer = solve_built_in(model, first);
  if (answer.status == MilpStatus::optimal || answer.status == MilpStatus::infeasible) return answer;
  MilpOptions second = options;
  second.time_limit_s -= seconds_since(start);
  if (second.time_limit_s <= 0) return answer;
  if (answer.has_solution()) second.start = answer.values;
  MilpAnswer better = solve_highs(model, second);
  better.nodes += answer.nodes;
  if (better.has_solution() || !answer.has_solution()) return better;
  answer.nodes = better.nodes;
  return answer;
}
#endif

MilpAnswer run(const MilpModel& model, const MilpOptions& options) {
#ifdef MOTLEY_WITH_HIGHS
  if (options.solver == MilpSolver::highs) return solve_highs(model, options);
  if (options.solver == MilpSolver::best) return run_best(model, options);
#else
  if (options.solver == MilpSolver::highs)
    throw Error(ErrorCode::environment, "this program was built without HiGHS",
                "run `./dev setup`, then `./dev build`");
#endif
  return solve_built_in(model, options);
}

// Integer columns exactly integer, everything inside its bounds.
void snap(const MilpModel& model, Integrality integrality, std::vector<double>& values) {
  for (std::size_t j = 0; j < values.size(); ++j) {
    const MilpColumn& column = model.columns[j];
    if (column.integer && integrality == Integrality::kept) values[j] = std::round(values[j]);
    values[j] = std::clamp(values[j], column.lower, column.upper);
  }
}

}  // namespace

bool highs_available() {
#ifdef MOTLEY_WITH_HIGHS
  return true;
#else
  return false;
#endif
}

double check_milp(const MilpModel& model, const std::vector<double>& values, Integrality integrality) {
  MOTLEY_CHECK(values.size() == model.columns.size());
  double worst = 0;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const MilpColumn& column = model.columns[j];
    const double scale = std::max(1.0, std::abs(values[j]));
    worst = std::max({worst, (column.lower - values[j]) / scale, (values[j] - column.upper) / scale});
    if (column.integer && integrality == Integrality::kept)
      worst = std::max(worst, std::abs(values[j] - std::round(values[j])));
    if (!std::isfinite(values[j])) return std::numeric_limits<double>::infinity();
  }
  for (const auto& row : model.rows) {
    double sum = 0, scale = 1;
    for (const auto& entry : row.entries) {
      const double term = entry.value * values[entry.column];
      sum += term;
      scale = std::max(scale, std::abs(term));
    }
    worst = std::max({worst, (row.lower - sum) / scale, (sum - row.upper) / scale});
  }
  return worst;
}

double milp_objective(const MilpModel& model, const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t j = 0; j < values.size(); ++j) sum += model.columns[j].cost * values[j];
  return sum;
}

MilpAnswer solve_milp(const MilpModel& model, const MilpOptions& given) {
  check_model(model);
  MilpOptions options = given;
  if (options.start.size() != model.columns.size() ||
      check_milp(model, options.start, options.integrality) > milp_tolerance)
    options.start.clear();

  MilpAnswer answer = run(model, options);
  if (answer.has_solution()) snap(model, options.integrality, answer.values);
  const bool sound = answer.has_solution() && check_milp(model, answer.values, options.integrality) <= milp_tolerance;
  const double sign = model.sense == Sense::minimize ? 1 : -1;
  if (answer.has_solution() && !sound) answer = {};
  // A solver that stops early, or whose answer is unsound, does not make one forget the start.
  if (!options.start.empty() &&
      (!sound || sign * milp_objective(model, options.start) < sign * milp_objective(model, answer.values))) {
    answer.values = options.start;
    if (answer.status != MilpStatus::optimal) answer.status = MilpStatus::feasible;
  }
  if (answer.has_solution()) answer.objective = milp_objective(model, answer.values);
  return answer;
}

}  // namespace motley
