#include "motley/planner/rent/rent_fleet.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

constexpr std::size_t whole_relaxation = 1500;  // shapes that are put into one relaxation without column generation
constexpr std::size_t first_columns = 500;      // of column generation, and more in each round
constexpr std::size_t tie_columns = 40;
constexpr std::int64_t tie_nodes = 100;
constexpr double pricing = 1e-9;  // relative to the bound: a column that gains less does not enter
constexpr double same_objective = 1e-9;

struct Fleet {
  Copies copies;
  Routing routing;
  double cost = 0;
};

Fleet evaluated(const RentProblem& problem, Copies copies) {
  Fleet fleet{.copies = std::move(copies), .routing = {}};
  fleet.routing = route(problem, fleet.copies);
  fleet.cost = problem.cost(fleet.copies);
  return fleet;
}

class FleetSearch {
 public:
  FleetSearch(const RentProblem& problem, const FleetOptions& options)
      : problem_(problem), options_(options), candidates_(undominated(problem)) {}

  Prices relaxation() {
    if (auto start = greedy_fleet(problem_)) accept(std::move(*start));
    relax();
    return prices_;
  }

  FleetAnswer run() {
    if (problem_.level_bound <= 0 || candidates_.empty()) return nothing();
    if (auto start = greedy_fleet(problem_)) accept(std::move(*start));
    if (!relax()) return nothing();
    search_pools();
    if (!best_) return nothing();
    if (problem_.form == RentForm::budget) spend_less();
    break_ties();
    return answer();
  }

 private:
  // To be minimized: the cost, or minus the level.
  double objective(const Fleet& fleet) const {
    return problem_.form == RentForm::cheapest ? fleet.cost : -fleet.routing.level;
  }
  double scale() const { return std::max(1e-12, std::abs(best_ ? objective(*best_) : bound_)); }

  bool feasible(const Fleet& fleet) const {
    if (problem_.form == RentForm::cheapest) return fleet.routing.level >= 1 - milp_tolerance;
    return fleet.cost <= problem_.budget_usd_per_hour * (1 + same_objective);
  }

  // Whether it is the best so far; of equals the cheaper.
  bool accept(Copies copies) {
    Fleet fleet = evaluated(problem_, std::move(copies));
    if (!feasible(fleet)) return false;
    if (best_) {
      const double better = objective(*best_) - objective(fleet);
      if (better < -same_objective * scale()) return false;
      if (better <= same_objective * scale() && fleet.cost >= best_->cost) return false;
    }
    best_ = std::move(fleet);
    return true;
  }

  MilpAnswer solve(const FamilyModel& family, Integrality integrality, double seconds, std::int64_t nodes,
                   const Fleet* start) {
    MilpOptions options{.solver = options_.solver,
                        .integrality = integrality,
                        .time_limit_s = seconds,
                        .relative_gap = options_.relative_gap * 0.9,
                        .node_limit = nodes};
    if (start && integrality == Integrality::kept)
      options.start = family.values(problem_, start->copies, start->routing);
    MilpAnswer result = solve_milp(family.milp, options);
    evaluated_ += static_cast<std::int64_t>(family.shapes.size()) + result.nodes;
    return result;
  }

  // ---- relaxation ----

  // Shapes to begin with: what is rented so far, what runs, and the cheapest of every class.
  std::vector<int> first_pool() const {
    if (candidates_.size() <= whole_relaxation) return candidates_;
    std::vector<bool> in(problem_.shapes.size(), false);
    for (const int c : candidates_) in[c] = problem_.shapes[c].current > 0 || (best_ && best_->copies[c] > 0);
    const std::size_t each = first_columns / static_cast<std::size_t>(problem_.classes) + 1;
    for (int w = 0; w < problem_.classes; ++w) {
      std::vector<std::pair<double, int>> prices;
      for (const int c : candidates_)
        for (const auto& rate : problem_.shapes[c].rates)
          if (rate.class_index == w) prices.emplace_back(problem_.shapes[c].usd_per_hour / rate.level, c);
      const std::size_t taken = std::min(each, prices.size());
      std::partial_sort(prices.begin(), prices.begin() + static_cast<std::ptrdiff_t>(taken), prices.end());
      for (std::size_t i = 0; i < taken; ++i) in[prices[i].second] = true;
    }
    std::vector<int> pool;
    for (const int c : candidates_)
      if (in[c]) pool.push_back(c);
    return pool;
  }

  // Columns outside the pool with negative reduced cost, the most negative first.
  std::vector<int> improving(const std::vector<int>& pool, const Prices& prices) const {
    std::vector<bool> in(problem_.shapes.size(), false);
    for (const int c : pool) in[c] = true;
    std::vector<std::pair<double, int>> found;
    for (const int c : candidates_) {
      if (in[c]) continue;
      const double reduced = reduced_cost(problem_, problem_.shapes[c], prices);
      if (reduced < -pricing * std::max(1e-6, std::abs(prices.bound))) found.emplace_back(reduced, c);
    }
    const std::size_t taken = std::min(first_columns, found.size());
    std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(taken), found.end());
    std::vector<int> columns;
    for (std::size_t i = 0; i < taken; ++i) columns.push_back(found[i].second);
    return columns;
  }

  // Column generation from `pool` on. The last prices, or nothing where the programme on the final pool is infeasible.
  std::optional<Prices> generate(std::vector<int>& pool, Aim aim) {
    std::optional<Prices> best;
    while (true) {
      const FamilyModel family = build_family(problem_, pool, aim);
      const MilpAnswer answer = solve(family, Integrality::relaxed, seconds_left(options_.deadline), 0, nullptr);
      if (answer.status != MilpStatus::optimal) return best;
      const Prices prices = prices_of(problem_, family, answer.row_duals);
      if (!best || prices.bound > best->bound) best = prices;
      level_ = family.level_column >= 0 ? answer.values[static_cast<std::size_t>(family.level_column)] : 1;
      const std::vector<int> more = improving(pool, prices);
      if (more.empty() || seconds_left(options_.deadline) <= 0) return best;
      pool.insert(pool.end(), more.begin(), more.end());
      std::sort(pool.begin(), pool.end());
    }
  }

  // False where no fleet reaches the goal.
  bool relax() {
    std::vector<int> pool = first_pool();
    std::optional<Prices> prices;
    if (problem_.form == RentForm::cheapest) {
      // Whether the demand can be carried at all, and columns that do.
      if (!best_) {
        const std::optional<Prices> capacity = generate(pool, Aim::capacity);
        if (capacity) {
          capacity_ = level_ * problem_.level_bound;
          prices_ = *capacity;
        }
        if (capacity && capacity_ < 1 - milp_tolerance && -capacity->bound < 1 - milp_tolerance) return false;
      }
    }
    prices = generate(pool, Aim::goal);
    bound_ = problem_.form == RentForm::cheapest ? problem_.cost_bound : -problem_.level_bound;
    if (prices) {
      prices_ = *prices;
      bound_ = std::max(bound_, prices_.bound);
    }
    relaxed_ = prices.has_value();
    return relaxed_ || best_;
  }

  // ---- integers ----

  void search_pools() {
    bound_found_ = bound_;
    if (!relaxed_) return;
    std::vector<std::pair<double, int>> order;
    for (const int c : candidates_) {
      const RentShape& shape = problem_.shapes[c];
      const bool wanted = shape.current > 0 || (best_ && best_->copies[c] > 0);
      order.emplace_back(wanted ? -std::numeric_limits<double>::infinity() : reduced_cost(problem_, shape, prices_), c);
    }
    std::sort(order.begin(), order.end());
    for (std::size_t size = static_cast<std::size_t>(options_.pool);; size *= 2) {
      // A column whose reduced cost exceeds what is still to be gained is in no better fleet.
      std::size_t useful = order.size();
      if (best_) {
        const double room = objective(*best_) - prices_.bound;
        useful = static_cast<std::size_t>(
            std::partition_point(order.begin(), order.end(), [&](const auto& entry) { return entry.first <= room; }) -
            order.begin());
      }
      const std::size_t taken = std::min(size, useful);
      const bool last = taken == useful;
      std::vector<int> pool;
      for (std::size_t i = 0; i < taken; ++i) pool.push_back(order[i].second);
      std::sort(pool.begin(), pool.end());
      const double outside = last ? std::numeric_limits<double>::infinity() : prices_.bound + order[taken].first;
      solve_pool(pool, last, outside);
      pool_ = std::move(pool);
      if (last || gap() <= options_.relative_gap || seconds_left(options_.deadline) <= 0) return;
    }
  }

  // The programme on the pool; no fleet with a column outside is better than `outside`.
  void solve_pool(const std::vector<int>& pool, bool last, double outside) {
    const double left = seconds_left(options_.deadline);
    if (left <= 0 || pool.empty()) return;
    const FamilyModel family = build_family(problem_, pool, Aim::goal);
    const MilpAnswer answer = solve(family, Integrality::kept, last ? left : left / 2, 0, best_ ? &*best_ : nullptr);
    if (answer.has_solution()) accept(family.copies(problem_, answer.values));
    double bound = answer.bound;
    if (problem_.form == RentForm::budget) bound *= -problem_.level_bound;
    // Without a better one on the pool, the best so far bounds what the pool can bring.
    if (answer.status == MilpStatus::infeasible) bound = std::numeric_limits<double>::infinity();
    if (answer.status == MilpStatus::none) return;
    bound = std::min(bound, outside);
    if (best_) bound = std::min(bound, objective(*best_));
    if (std::isfinite(bound)) bound_found_ = std::max(bound_found_, bound);
  }

  double gap() const {
    if (!best_) return std::numeric_limits<double>::infinity();
    return std::max(0.0, objective(*best_) - bound_found_) / scale();
  }

  // ---- of equal fleets ----

  // A cheaper fleet of the same level: in the form `budget` money does not stand in the objective.
  void spend_less() {
    FamilyModel family = build_family(problem_, tie_pool(), Aim::goal);
    MilpModel& model = family.milp;
    model.sense = Sense::minimize;
    for (auto& column : model.columns) column.cost = 0;
    for (const auto& entry : model.rows[static_cast<std::size_t>(family.budget_row)].entries)
      model.columns[static_cast<std::size_t>(entry.column)].cost = entry.value;
    hold_level(family);
    const MilpAnswer answer = break_tie(model, family.values(problem_, best_->copies, best_->routing));
    if (answer.has_solution()) accept(family.copies(problem_, answer.values));
  }

  // By nodes, not by seconds: the plan must not depend on the machine.
  MilpAnswer break_tie(const MilpModel& model, std::vector<double> start) const {
    return solve_milp(model, {.solver = MilpSolver::built_in,
                              .time_limit_s = seconds_left(options_.deadline),
                              .relative_gap = same_objective,
                              .node_limit = tie_nodes,
                              .start = std::move(start)});
  }

  void hold_level(FamilyModel& family) const {
    auto& level = family.milp.columns[static_cast<std::size_t>(family.level_column)];
    level.lower = std::min(level.upper, best_->routing.level / problem_.level_bound * (1 - 2 * same_objective));
  }

  // Fewest distinct shapes, then fewest devices, then the first names.
  void break_ties() {
    std::vector<int> pool = tie_pool();
    FamilyModel family = build_family(problem_, pool, Aim::goal);
    MilpModel& model = family.milp;
    MilpRow money{.upper = best_->cost * (1 + same_objective)};
    if (family.budget_row >= 0)
      model.rows[static_cast<std::size_t>(family.budget_row)].upper = money.upper;
    else
      for (std::size_t j = 0; j < model.columns.size(); ++j)
        if (model.columns[j].cost != 0) money.entries.push_back({static_cast<int>(j), model.columns[j].cost});
    if (!money.entries.empty()) model.add_row(std::move(money));
    if (family.level_column >= 0) hold_level(family);
    model.sense = Sense::minimize;
    for (auto& column : model.columns) column.cost = 0;

    const std::size_t plain = model.columns.size();
    double devices = 1;
    for (std::size_t i = 0; i < pool.size(); ++i) devices += devices_of(pool[i]) * best_->copies[pool[i]];
    for (std::size_t i = 0; i < pool.size(); ++i) {
      const int copies = family.copies_column[i];
      const int used = model.add_column({.cost = 2 * devices, .upper = 1, .integer = true});
      const double rank = static_cast<double>(i + 1) / static_cast<double>(pool.size());
      model.columns[static_cast<std::size_t>(copies)].cost = devices_of(pool[i]) + 0.1 * rank / devices;
      model.add_row({.upper = 0, .entries = {{copies, 1}, {used, -model.columns[copies].upper}}});
    }
    std::vector<double> start = family.values(problem_, best_->copies, best_->routing);
    start.resize(model.columns.size());
    for (std::size_t i = 0; i < pool.size(); ++i) start[plain + i] = best_->copies[pool[i]] > 0 ? 1 : 0;
    const MilpAnswer answer = break_tie(model, start);
    if (!answer.has_solution()) return;
    Fleet fleet = evaluated(problem_, family.copies(problem_, answer.values));
    const double slack = 10 * same_objective;
    const bool same = feasible(fleet) && objective(fleet) <= objective(*best_) + slack * scale() &&
                      fleet.cost <= best_->cost * (1 + slack);
    if (same && answer.objective < milp_objective(model, start) - 1e-9) best_ = std::move(fleet);
  }

  double devices_of(int c) const {
    int sum = 0;
    for (const auto& [type, count] : problem_.shapes[c].devices) sum += count;
    return sum;
  }

  // What is rented, and the columns that the relaxation wants most.
  std::vector<int> tie_pool() const {
    std::vector<std::pair<double, int>> order;
    for (const int c : pool_.empty() ? candidates_ : pool_) {
      const bool rented = best_->copies[c] > 0;
      order.emplace_back(rented     ? -std::numeric_limits<double>::infinity()
                         : relaxed_ ? reduced_cost(problem_, problem_.shapes[c], prices_)
                                    : 0,
                         c);
    }
    for (std::size_t c = 0; c < best_->copies.size(); ++c)
      if (best_->copies[c] > 0 && std::none_of(order.begin(), order.end(),
                                               [&](const auto& entry) { return entry.second == static_cast<int>(c); }))
        order.emplace_back(-std::numeric_limits<double>::infinity(), static_cast<int>(c));
    std::sort(order.begin(), order.end());
    if (order.size() > tie_columns) order.resize(tie_columns);
    std::vector<int> pool;
    for (const auto& entry : order) pool.push_back(entry.second);
    std::sort(pool.begin(), pool.end());
    return pool;
  }

  // ---- the end ----

  // Nothing after the deadline.
  Prices shadow_prices() {
    std::vector<int> pool = pool_;
    for (std::size_t c = 0; c < best_->copies.size(); ++c)
      if (best_->copies[c] > 0 && std::find(pool.begin(), pool.end(), static_cast<int>(c)) == pool.end())
        pool.push_back(static_cast<int>(c));
    FamilyModel family = build_family(problem_, pool, Aim::goal);
    loosen(family);
    const MilpAnswer answer = solve(family, Integrality::relaxed, seconds_left(options_.deadline) + 1, 0, nullptr);
    return answer.status == MilpStatus::optimal ? prices_of(problem_, family, answer.row_duals) : prices_;
  }

  FleetAnswer nothing() const {
    return {.copies = std::nullopt, .routing = {}, .prices = prices_, .capacity = capacity_, .evaluated = evaluated_};
  }

  FleetAnswer answer() {
    const Prices prices = shadow_prices();
    FleetAnswer result{.copies = best_->copies,
                       .routing = best_->routing,
                       .cost = best_->cost,
                       .bound = std::abs(bound_found_),
                       .gap = gap(),
                       .prices = prices,
                       .evaluated = evaluated_};
    result.exact = result.gap <= options_.relative_gap;
    return result;
  }

  const RentProblem& problem_;
  const FleetOptions& options_;
  std::vector<int> candidates_;
  std::vector<int> pool_;
  std::optional<Fleet> best_;
  Prices prices_;
  bool relaxed_ = false;
  double bound_ = 0;        // of the relaxation: objective to be minimized
  double bound_found_ = 0;  // with what branch and bound proved
  double level_ = 0;        // of the last relaxation, in level_bound
  double capacity_ = 0;
  std::int64_t evaluated_ = 0;
};

}  // namespace

double seconds_left(Instant deadline) { return std::max(0.0, seconds_until(deadline)); }

Prices relaxed_prices(const RentProblem& problem, const FleetOptions& options) {
  if (problem.level_bound <= 0) return {.classes = {}, .devices = {}};
  return FleetSearch(problem, options).relaxation();
}

FleetAnswer solve_fleet(const RentProblem& problem, const FleetOptions& options) {
  return FleetSearch(problem, options).run();
}

}  // namespace motley
