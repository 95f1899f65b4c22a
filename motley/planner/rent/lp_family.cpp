#include "motley/planner/rent/lp_family.hpp"

#include <algorithm>
#include <cmath>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double most_level = 1.01;  // of level_bound

// Adds the rows of one scenario for the pool's shapes; `level_column` < 0: level 1 is demanded.
class Builder {
 public:
  Builder(const RentProblem& problem, FamilyModel& family) : problem_(problem), family_(family) {}

  void add_scenario(int scenario) {
    std::vector<MilpRow> served(static_cast<std::size_t>(problem_.classes));
    const double level = problem_.scenario_level(scenario);
    for (std::size_t i = 0; i < family_.shapes.size(); ++i) {
      const int c = family_.shapes[i];
      const RentShape& shape = problem_.shapes[c];
      if (!problem_.runs(shape, scenario)) continue;
      if (shape.rates.size() == 1) {
        served[shape.rates[0].class_index].entries.push_back({family_.copies_column[i], shape.rates[0].level});
        continue;
      }
      MilpRow time{.upper = 0, .entries = {{family_.copies_column[i], -1}}};
      for (const auto& rate : shape.rates) {
        const int column = family_.milp.add_column({.upper = static_cast<double>(shape.most)});
        family_.time_columns.push_back({scenario, c, rate.class_index, column});
        served[rate.class_index].entries.push_back({column, rate.level});
        time.entries.push_back({column, 1});
      }
      family_.milp.add_row(std::move(time));
    }
    for (auto& row : served) {
      row.lower = level;
      if (family_.level_column >= 0) {
        row.lower = 0;
        for (auto& entry : row.entries) entry.value /= problem_.level_bound;
        row.entries.push_back({family_.level_column, -level});
      }
      family_.class_rows.push_back(family_.milp.add_row(std::move(row)));
    }
  }

 private:
  const RentProblem& problem_;
  FamilyModel& family_;
};

void add_available(const RentProblem& problem, FamilyModel& family) {
  std::vector<MilpRow> rows(problem.available.size());
  for (std::size_t i = 0; i < family.shapes.size(); ++i)
    for (const auto& [type, count] : problem.shapes[family.shapes[i]].devices)
      rows[type].entries.push_back({family.copies_column[i], static_cast<double>(count)});
  family.available_rows.assign(problem.available.size(), -1);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    if (problem.available[n] < 0 || rows[n].entries.empty()) continue;
    rows[n].upper = problem.available[n];
    family.available_rows[n] = family.milp.add_row(std::move(rows[n]));
  }
}

// Price and start-up: in the objective, or in a row.
void add_money(const RentProblem& problem, FamilyModel& family) {
  MilpRow money{.upper = problem.budget_usd_per_hour};
  for (std::size_t i = 0; i < family.shapes.size(); ++i) {
    const RentShape& shape = problem.shapes[family.shapes[i]];
    const double startup = shape.usd_per_hour * problem.startup_share;
    const bool starts_apart = startup > 0 && shape.current > 0;
    money.entries.push_back({family.copies_column[i], shape.usd_per_hour + (starts_apart ? 0 : startup)});
    if (!starts_apart) continue;
    const int column = family.milp.add_column({.upper = static_cast<double>(shape.most)});
    family.startup_columns.emplace_back(family.shapes[i], column);
    money.entries.push_back({column, startup});
    family.milp.add_row(
        {.upper = static_cast<double>(shape.current), .entries = {{family.copies_column[i], 1}, {column, -1}}});
  }
  if (problem.form == RentForm::budget)
    family.budget_row = family.milp.add_row(std::move(money));
  else
    for (const auto& entry : money.entries) family.milp.columns[entry.column].cost = entry.value;
}

}  // namespace

FamilyModel build_family(const RentProblem& problem, const std::vector<int>& pool, Aim aim) {
  FamilyModel family;
  family.shapes = pool;
  for (const int c : pool)
    family.copies_column.push_back(
        family.milp.add_column({.upper = static_cast<double>(problem.shapes[c].most), .integer = true}));
  const bool fixed_level = aim == Aim::goal && problem.form == RentForm::cheapest;
  if (!fixed_level) {
    family.milp.sense = Sense::maximize;
    // Above the certificate, so that where it is reached the rows' prices say why, not this bound's.
    family.level_column = family.milp.add_column({.cost = 1, .upper = most_level});
  }
  Builder builder(problem, family);
  for (int scenario = 0; scenario < problem.scenarios(); ++scenario) builder.add_scenario(scenario);
  add_available(problem, family);
  if (aim == Aim::goal) add_money(problem, family);
  return family;
}

void loosen(FamilyModel& family) {
  const auto more = [&](int column) { family.milp.columns[static_cast<std::size_t>(column)].upper += 1; };
  for (const int column : family.copies_column) more(column);
  for (const auto& time : family.time_columns) more(time.column);
  for (const auto& [shape, column] : family.startup_columns) more(column);
}

Copies FamilyModel::copies(const RentProblem& problem, const std::vector<double>& values) const {
  Copies all(problem.shapes.size(), 0);
  for (std::size_t i = 0; i < shapes.size(); ++i)
    all[shapes[i]] = static_cast<int>(std::lround(values[static_cast<std::size_t>(copies_column[i])]));
  return all;
}

std::vector<double> FamilyModel::values(const RentProblem& problem, const Copies& copies,
                                        const Routing& routing) const {
  std::vector<double> all(milp.columns.size(), 0);
  for (std::size_t i = 0; i < shapes.size(); ++i) all[copies_column[i]] = copies[shapes[i]];
  for (const auto& [shape, column] : startup_columns)
    all[column] = std::max(0, copies[shape] - problem.shapes[shape].current);
  if (level_column >= 0)
    all[level_column] = std::clamp(routing.level / problem.level_bound * (1 - 1e-9), 0.0, most_level);
  for (const auto& time : time_columns)
    for (const auto& share : routing.times[time.scenario])
      if (share.shape == time.shape && share.class_index == time.class_index) all[time.column] = share.copies;
  return all;
}

Prices prices_of(const RentProblem& problem, const FamilyModel& family, const std::vector<double>& row_duals) {
  const bool fixed_level = family.level_column < 0;
  // In the orientation of a minimum, and in levels.
  const double sign = fixed_level ? 1 : -1, scale = fixed_level ? 1 : problem.level_bound;
  const auto dual = [&](int row) { return row < 0 ? 0.0 : sign * scale * row_duals[static_cast<std::size_t>(row)]; };
  Prices prices{.classes = {}, .devices = {}};
  // Rows were divided by the scale where the level is a variable.
  for (const int row : family.class_rows) prices.classes.push_back(std::max(0.0, dual(row)) / scale);
  for (const int row : family.available_rows) prices.devices.push_back(std::max(0.0, -dual(row)));
  if (!fixed_level) prices.money = std::max(0.0, -dual(family.budget_row));

  double asked = 0;  // what the classes of all scenarios pay for one level
  for (std::size_t i = 0; i < prices.classes.size(); ++i)
    asked += prices.classes[i] * problem.scenario_level(static_cast<int>(i) / problem.classes);
  prices.bound = fixed_level ? asked
                             : std::min(0.0, asked - 1) * most_level * problem.level_bound -
                                   prices.money * problem.budget_usd_per_hour;
  for (std::size_t n = 0; n < prices.devices.size(); ++n)
    if (problem.available[n] >= 0) prices.bound -= prices.devices[n] * problem.available[n];
  for (const auto& shape : problem.shapes) {
    const double started = reduced_cost(problem, shape, prices);
    const double running = started - prices.money * problem.startup_share * shape.usd_per_hour;
    const int free = std::min(shape.current, shape.most);
    prices.bound += std::min(0.0, running) * free + std::min(0.0, started) * (shape.most - free);
  }
  return prices;
}

double reduced_cost(const RentProblem& problem, const RentShape& shape, const Prices& prices) {
  double cost = prices.money * shape.usd_per_hour * (1 + problem.startup_share);
  for (const auto& [type, count] : shape.devices) cost += prices.devices[type] * count;
  for (int scenario = 0; scenario < problem.scenarios(); ++scenario) {
    if (!problem.runs(shape, scenario)) continue;
    double most = 0;
    for (const auto& rate : shape.rates)
      most = std::max(
          most, prices.classes[static_cast<std::size_t>(scenario * problem.classes + rate.class_index)] * rate.level);
    cost -= most;
  }
  return cost;
}

// ---- routing ----

namespace {

MilpAnswer solve_small(const MilpModel& model) {
  const MilpAnswer answer =
      solve_milp(model, {.solver = MilpSolver::built_in, .integrality = Integrality::relaxed, .time_limit_s = 1e6});
  MOTLEY_CHECK(answer.has_solution());  // an empty routing is feasible, and every variable is bounded
  return answer;
}

struct ScenarioRouting {
  double level = 0;
  std::vector<TimeShare> times;
};

ScenarioRouting route_scenario(const RentProblem& problem, const Copies& copies, int scenario) {
  MilpModel model{.sense = Sense::maximize};
  std::vector<MilpRow> served(static_cast<std::size_t>(problem.classes), MilpRow{.lower = 0});
  std::vector<double> capacity(served.size(), 0);
  ScenarioRouting routing;
  for (std::size_t c = 0; c < copies.size(); ++c) {
    const RentShape& shape = problem.shapes[c];
    if (copies[c] == 0 || !problem.runs(shape, scenario)) continue;
    MilpRow time{.upper = static_cast<double>(copies[c])};
    for (const auto& rate : shape.rates) {
      const int column = model.add_column({.upper = static_cast<double>(copies[c])});
      routing.times.push_back({static_cast<int>(c), rate.class_index, 0});
      time.entries.push_back({column, 1});
      served[rate.class_index].entries.push_back({column, rate.level});
      capacity[rate.class_index] += rate.level * copies[c];
    }
    model.add_row(std::move(time));
  }
  const double most = *std::min_element(capacity.begin(), capacity.end());
  if (most <= 0) return {};
  // In shares of `most`, so that the numbers are near 1.
  const int level = model.add_column({.cost = 1, .upper = 1});
  for (auto& row : served) {
    for (auto& entry : row.entries) entry.value /= most;
    row.entries.push_back({level, -1});
    model.add_row(std::move(row));
  }
  const MilpAnswer greatest = solve_small(model);
  const double reached = greatest.values[level];
  // The same level in the least time; the slack is every class's.
  model.sense = Sense::minimize;
  for (auto& column : model.columns) column.cost = 1;
  model.columns[level] = {.cost = 0, .lower = reached * (1 - 1e-9), .upper = reached};
  const MilpAnswer least =
      solve_milp(model, {.solver = MilpSolver::built_in, .integrality = Integrality::relaxed, .time_limit_s = 1e6});
  const std::vector<double>& values = least.has_solution() ? least.values : greatest.values;
  for (std::size_t i = 0; i < routing.times.size(); ++i) routing.times[i].copies = values[i];
  routing.level = reached * most;
  return routing;
}

}  // namespace

Routing route(const RentProblem& problem, const Copies& copies) {
  Routing routing{.level = std::numeric_limits<double>::infinity(), .times = {}};
  for (int scenario = 0; scenario < problem.scenarios(); ++scenario) {
    ScenarioRouting one = route_scenario(problem, copies, scenario);
    routing.level = std::min(routing.level, one.level / problem.scenario_level(scenario));
    routing.times.push_back(std::move(one.times));
  }
  return routing;
}

}  // namespace motley
