// Branch and bound over the bounded dual simplex. One table serves the whole tree: a node is a set of bounds, and the
// simplex goes on from whatever basis it has.
//
// Nodes: dive into the better child until the dive ends, then go on with the open node of the best bound. Branching: by
// pseudo-costs, the gains of the bound that earlier branchings on the column brought per unit. Reduced costs at the
// root narrow the bounds of integer columns whenever a better solution is found.
#include <algorithm>
#include <cmath>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/solve/milp_solvers.hpp"
#include "motley/solve/simplex.hpp"

namespace motley {
namespace {

constexpr double integer_tolerance = 1e-6;         // distance from an integer that counts as none
constexpr std::size_t largest_table = 40'000'000;  // entries

struct Node {
  int parent = -1;
  int column = -1;
  double lower = 0, upper = 0;  // of that column
  double bound = 0;             // no solution below is better
  double fraction = 0;          // by how much the column's value had to move
};

// Mean gain of the bound per unit, downwards and upwards.
struct PseudoCost {
  double sum[2] = {0, 0};
  int count[2] = {0, 0};
};

class BranchAndBound {
 public:
  BranchAndBound(const MilpModel& model, const MilpOptions& options, Instant deadline)
      : model_(model), options_(options), deadline_(deadline), simplex_(model), pseudo_(model.columns.size()) {
    for (std::size_t j = 0; j < model.columns.size(); ++j) {
      if (model.columns[j].integer) integers_.push_back(static_cast<int>(j));
      root_lower_.push_back(model.columns[j].integer ? std::ceil(model.columns[j].lower - integer_tolerance)
                                                     : model.columns[j].lower);
      root_upper_.push_back(model.columns[j].integer ? std::floor(model.columns[j].upper + integer_tolerance)
                                                     : model.columns[j].upper);
    }
    sign_ = model.sense == Sense::minimize ? 1 : -1;
    if (!options.start.empty()) accept(options.start);
  }

  MilpAnswer run() {
    nodes_.push_back({});
    nodes_[0].bound = -std::numeric_limits<double>::infinity();
    open_.push_back(0);
    bool complete = true;
    while (complete && !open_.empty()) {
      const auto best = std::min_element(open_.begin(), open_.end(), [&](int a, int b) {
        return nodes_[a].bound != nodes_[b].bound ? nodes_[a].bound < nodes_[b].bound : a < b;
      });
      int node = *best;
      open_.erase(best);
      while (node >= 0 && complete) {
        if (nodes_[node].bound >= cutoff()) break;
        if (options_.node_limit > 0 && explored_ >= options_.node_limit) complete = false;
        if (complete) complete = explore(node);
      }
      if (!complete && node >= 0) open_.push_back(node);
    }
    return answer(complete);
  }

 private:
  // A node is worth exploring only below.
  double cutoff() const {
    if (incumbent_.empty()) return std::numeric_limits<double>::infinity();
    return incumbent_cost_ - std::max(1e-10, options_.relative_gap * std::abs(incumbent_cost_));
  }

  void accept(const std::vector<double>& values) {
    std::vector<double> rounded = values;
    for (const int j : integers_) rounded[j] = std::round(rounded[j]);
    const double cost = sign_ * milp_objective(model_, rounded);
    if (check_milp(model_, rounded, Integrality::kept) > milp_tolerance ||
        (!incumbent_.empty() && cost >= incumbent_cost_))
      return;
    incumbent_ = std::move(rounded);
    incumbent_cost_ = cost;
    narrow_root();
  }

  // Moving a column by k units off its bound at the root costs at least k reduced costs.
  void narrow_root() {
    if (root_reduced_.empty()) return;
    for (const int j : integers_) {
      const double reduced = root_reduced_[j];
      if (std::abs(reduced) < 1e-12) continue;
      const double units = std::floor((cutoff() - root_bound_) / std::abs(reduced) + integer_tolerance);
      if (units < 0) continue;
      if (reduced > 0)
        root_upper_[j] = std::min(root_upper_[j], root_lower_[j] + units);
      else
        root_lower_[j] = std::max(root_lower_[j], root_upper_[j] - units);
    }
  }

  void apply_bounds(int node) {
    for (std::size_t j = 0; j < root_lower_.size(); ++j)
      simplex_.set_bounds(static_cast<int>(j), root_lower_[j], root_upper_[j]);
    for (; node > 0; node = nodes_[node].parent) {
      const int j = nodes_[node].column;
      simplex_.set_bounds(j, std::max(simplex_.lower(j), nodes_[node].lower),
                          std::min(simplex_.upper(j), nodes_[node].upper));
    }
  }

  // Solves a node; `node` becomes the child to go on with, or -1. False at a limit.
  bool explore(int& node) {
    const int here = std::exchange(node, -1);
    ++explored_;
    apply_bounds(here);
    if (here > 0 && simplex_.lower(nodes_[here].column) > simplex_.upper(nodes_[here].column)) return true;
    const Simplex::End end = simplex_.run(cutoff(), deadline_);
    if (end == Simplex::End::limit) {
      node = here;
      return false;
    }
    if (end == Simplex::End::infeasible) return true;
    const double bound = std::max(nodes_[here].bound, simplex_.bound());
    learn(here, bound);
    nodes_[here].bound = bound;
    if (end == Simplex::End::cutoff) return true;
    if (here == 0) {
      root_reduced_ = simplex_.reduced_costs();
      root_bound_ = bound;
      narrow_root();
    }
    const std::optional<int> column = branching_column();
    if (!column) {
      accept(column_values());
      return true;
    }
    if (explored_ % 8 == 1) accept_rounded();
    node = branch(here, *column, bound);
    return true;
  }

  void learn(int node, double bound) {
    if (node == 0 || nodes_[node].fraction <= 0 || !std::isfinite(nodes_[node].bound)) return;
    const int direction = nodes_[node].lower > root_lower_[nodes_[node].column] ? 1 : 0;
    PseudoCost& cost = pseudo_[nodes_[node].column];
    cost.sum[direction] += std::max(0.0, bound - nodes_[node].bound) / nodes_[node].fraction;
    ++cost.count[direction];
  }

  double expected_gain(int column, int direction, double fraction) const {
    const PseudoCost& cost = pseudo_[column];
    if (cost.count[direction] > 0) return fraction * cost.sum[direction] / cost.count[direction];
    double sum = 0;
    int count = 0;
    for (const int j : integers_) {
      sum += pseudo_[j].sum[direction];
      count += pseudo_[j].count[direction];
    }
    return fraction * (count > 0 ? sum / count : 1);
  }

  std::optional<int> branching_column() const {
    std::optional<int> best;
    double most = -1;
    for (const int j : integers_) {
      const double value = simplex_.value(j), fraction = value - std::floor(value);
      if (fraction < integer_tolerance || fraction > 1 - integer_tolerance) continue;
      const double score =
          std::max(1e-9, expected_gain(j, 0, fraction)) * std::max(1e-9, expected_gain(j, 1, 1 - fraction));
      if (score > most * (1 + 1e-9)) {
        most = score;
        best = j;
      }
    }
    return best;
  }

  int branch(int here, int column, double bound) {
    const double value = simplex_.value(column), below = std::floor(value);
    const double lower = simplex_.lower(column), upper = simplex_.upper(column);
    const int down = static_cast<int>(nodes_.size());
    nodes_.push_back({here, column, lower, below, bound, value - below});
    nodes_.push_back({here, column, below + 1, upper, bound, below + 1 - value});
    const bool dive_up = expected_gain(column, 1, below + 1 - value) < expected_gain(column, 0, value - below);
    open_.push_back(dive_up ? down : down + 1);
    return dive_up ? down + 1 : down;
  }

  std::vector<double> column_values() const {
    std::vector<double> values;
    for (std::size_t j = 0; j < model_.columns.size(); ++j) values.push_back(simplex_.value(static_cast<int>(j)));
    return values;
  }

  // The relaxation's integers rounded up, as a guess; what depends on them stays as it is.
  void accept_rounded() {
    std::vector<double> values = column_values();
    for (const int j : integers_)
      values[j] = std::min(std::ceil(values[j] - integer_tolerance), model_.columns[j].upper);
    accept(values);
  }

  MilpAnswer answer(bool complete) const {
    MilpAnswer result;
    result.nodes = explored_;
    double bound = incumbent_.empty() ? std::numeric_limits<double>::infinity() : incumbent_cost_;
    if (!incumbent_.empty()) bound = cutoff();
    for (const int node : open_) bound = std::min(bound, nodes_[node].bound);
    result.bound = sign_ * bound;
    result.values = incumbent_;
    if (complete)
      result.status = incumbent_.empty() ? MilpStatus::infeasible : MilpStatus::optimal;
    else
      result.status = incumbent_.empty() ? MilpStatus::none : MilpStatus::feasible;
    return result;
  }

  const MilpModel& model_;
  const MilpOptions& options_;
  Instant deadline_;
  Simplex simplex_;
  double sign_ = 1;
  std::vector<int> integers_;
  std::vector<double> root_lower_, root_upper_;
  std::vector<double> root_reduced_;
  double root_bound_ = 0;
  std::vector<PseudoCost> pseudo_;
  std::vector<Node> nodes_;
  std::vector<int> open_;
  std::vector<double> incumbent_;
  double incumbent_cost_ = std::numeric_limits<double>::infinity();
  std::int64_t explored_ = 0;
};

MilpAnswer solve_relaxation(const MilpModel& model, Instant deadline) {
  Simplex simplex(model);
  const double sign = model.sense == Sense::minimize ? 1 : -1;
  MilpAnswer answer{.bound = -sign * std::numeric_limits<double>::infinity()};
  const Simplex::End end = simplex.run(std::numeric_limits<double>::infinity(), deadline);
  if (end == Simplex::End::infeasible) answer.status = MilpStatus::infeasible;
  if (end == Simplex::End::limit) answer.bound = sign * simplex.bound();
  if (end != Simplex::End::optimal) return answer;
  answer.status = MilpStatus::optimal;
  answer.bound = sign * simplex.bound();
  const std::vector<double> reduced = simplex.reduced_costs();
  for (std::size_t j = 0; j < model.columns.size(); ++j) {
    answer.values.push_back(simplex.value(static_cast<int>(j)));
    answer.reduced_costs.push_back(sign * reduced[j]);
  }
  for (std::size_t i = 0; i < model.rows.size(); ++i)
    answer.row_duals.push_back(sign * reduced[model.columns.size() + i]);
  return answer;
}

}  // namespace

MilpAnswer solve_built_in(const MilpModel& model, const MilpOptions& options) {
  const double seconds = std::min(options.time_limit_s, 1e6);
  const auto deadline = deadline_in(seconds);
  if ((model.rows.size() + 1) * model.columns.size() > largest_table)
    return {.bound = (model.sense == Sense::minimize ? -1 : 1) * std::numeric_limits<double>::infinity()};
  const bool mixed = options.integrality == Integrality::kept &&
                     std::any_of(model.columns.begin(), model.columns.end(), [](const auto& c) { return c.integer; });
  return mixed ? BranchAndBound(model, options, deadline).run() : solve_relaxation(model, deadline);
}

}  // namespace motley
