#include "motley/solve/simplex.hpp"

#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"

namespace motley {
namespace {

constexpr double primal_tolerance = 1e-9;  // of a bound, relative
constexpr double pivot_tolerance = 1e-9;
constexpr double zero_entry = 1e-13;  // smaller entries of the table are dropped
constexpr std::int64_t rebuild_after = 2000;
constexpr std::int64_t fresh_pivots = 500;  // pivots after which infeasibility is still believed
constexpr int stalled_steps = 40;           // steps without progress before costs are shifted

double excess(double value, double bound) {
  return primal_tolerance * std::max({1.0, std::abs(value), std::abs(bound)});
}

}  // namespace

Simplex::Simplex(const MilpModel& model)
    : model_(model), columns_(model.columns.size()), rows_(model.rows.size()), basic_(rows_), nonbasic_(columns_) {
  const double sign = model.sense == Sense::minimize ? 1 : -1;
  for (const auto& column : model.columns) {
    cost_.push_back(sign * column.cost);
    lower_.push_back(column.lower);
    upper_.push_back(column.upper);
  }
  for (const auto& row : model.rows) {
    double least = 0, most = 0;
    for (const auto& [column, factor] : row.entries) {
      least += std::min(factor * lower_[column], factor * upper_[column]);
      most += std::max(factor * lower_[column], factor * upper_[column]);
    }
    // An activity that cannot be reached is an infeasible row, to be found by run().
    lower_.push_back(std::max(row.lower, std::min(least, row.upper)));
    upper_.push_back(std::min(row.upper, std::max(most, row.lower)));
  }
  value_.assign(columns_ + rows_, 0);
  rebuild();
}

void Simplex::set_bounds(int column, double lower, double upper) {
  lower_[column] = lower;
  upper_[column] = upper;
}

// The table of the present basis from the model's own numbers; the first time, of the activities. False where the basis
// has become singular and another took its place.
bool Simplex::rebuild() {
  std::vector<int> wanted;  // columns that were basic
  if (!table_.empty())
    for (const int variable : basic_)
      if (variable < static_cast<int>(columns_)) wanted.push_back(variable);
  std::vector<bool> stays(rows_, table_.empty());  // rows whose activity is basic
  if (!table_.empty())
    for (const int variable : basic_)
      if (variable >= static_cast<int>(columns_)) stays[variable - columns_] = true;

  table_.assign((rows_ + 1) * columns_, 0);
  for (std::size_t i = 0; i < rows_; ++i) {
    for (const auto& [column, factor] : model_.rows[i].entries) row(static_cast<int>(i))[column] = factor;
    basic_[i] = static_cast<int>(columns_ + i);
  }
  for (std::size_t j = 0; j < columns_; ++j) nonbasic_[j] = static_cast<int>(j);
  std::copy(cost_.begin(), cost_.end(), row(static_cast<int>(rows_)));
  working_ = cost_;
  bool complete = true;
  for (const int variable : wanted) {
    int best = -1;
    double largest = pivot_tolerance;
    for (std::size_t i = 0; i < rows_; ++i) {
      const bool free = basic_[i] >= static_cast<int>(columns_) && !stays[basic_[i] - columns_];
      if (const double size = std::abs(row(static_cast<int>(i))[variable]); free && size > largest) {
        largest = size;
        best = static_cast<int>(i);
      }
    }
    if (best >= 0)
      pivot(best, variable);  // a column that never left has its own position
    else
      complete = false;
  }
  since_rebuild_ = 0;
  return complete;
}

void Simplex::place_nonbasic() {
  for (std::size_t q = 0; q < columns_; ++q) {
    const int j = nonbasic_[q];
    const bool at_lower = working_[q] > 0 || (working_[q] == 0 && value_[j] <= (lower_[j] + upper_[j]) / 2);
    value_[j] = at_lower ? lower_[j] : upper_[j];
  }
  for (std::size_t i = 0; i < rows_; ++i) {
    const double* entries = row(static_cast<int>(i));
    double sum = 0;
    for (std::size_t q = 0; q < columns_; ++q)
      if (entries[q] != 0) sum += entries[q] * value_[nonbasic_[q]];
    value_[basic_[i]] = sum;
  }
}

int Simplex::leaving() const {
  int worst = -1;
  double largest = 0;
  for (std::size_t i = 0; i < rows_; ++i) {
    const int b = basic_[i];
    const double below = lower_[b] - value_[b], above = value_[b] - upper_[b];
    const double infeasibility = std::max(below - excess(value_[b], lower_[b]), above - excess(value_[b], upper_[b]));
    if (infeasibility > largest) {
      largest = infeasibility;
      worst = static_cast<int>(i);
    }
  }
  return worst;
}

Simplex::Entering Simplex::entering(int r, bool increase) const {
  struct Breakpoint {
    double ratio, size;
    int position;
  };
  std::vector<Breakpoint> breakpoints;
  const double* entries = row(r);
  const double sign = increase ? 1 : -1;
  for (std::size_t q = 0; q < columns_; ++q) {
    const double entry = sign * entries[q];
    const int j = nonbasic_[q];
    if (std::abs(entry) <= pivot_tolerance || lower_[j] == upper_[j]) continue;
    const bool at_lower = value_[j] == lower_[j];
    if ((entry > 0) == at_lower)
      breakpoints.push_back(
          {std::max(0.0, (at_lower ? 1 : -1) * working_[q]) / std::abs(entry), std::abs(entry), static_cast<int>(q)});
  }
  // Later breakpoints first: the heap's top is the least ratio, of equals the largest entry.
  const auto later = [](const Breakpoint& a, const Breakpoint& b) {
    if (a.ratio != b.ratio) return a.ratio > b.ratio;
    if (a.size != b.size) return a.size < b.size;
    return a.position > b.position;
  };
  std::make_heap(breakpoints.begin(), breakpoints.end(), later);
  const int b = basic_[r];
  double left = increase ? lower_[b] - value_[b] : value_[b] - upper_[b];
  Entering chosen;
  while (!breakpoints.empty()) {
    std::pop_heap(breakpoints.begin(), breakpoints.end(), later);
    const Breakpoint next = breakpoints.back();
    breakpoints.pop_back();
    const int j = nonbasic_[next.position];
    const double gain = next.size * (upper_[j] - lower_[j]);
    if (gain >= left) {
      chosen.position = next.position;
      return chosen;
    }
    left -= gain;
    chosen.flipped.push_back(next.position);
  }
  // Every variable at its best bound, and still infeasible; within the tolerance the last one may enter.
  if (left <= excess(value_[b], increase ? lower_[b] : upper_[b]) && !chosen.flipped.empty()) {
    chosen.position = chosen.flipped.back();
    chosen.flipped.pop_back();
  }
  return chosen;
}

void Simplex::step(int r, const Entering& chosen, bool increase) {
  const auto move = [&](int position, double change) {
    if (change == 0) return;
    value_[nonbasic_[position]] += change;
    for (std::size_t i = 0; i < rows_; ++i)
      if (const double entry = row(static_cast<int>(i))[position]; entry != 0) value_[basic_[i]] += entry * change;
  };
  for (const int position : chosen.flipped) {
    const int j = nonbasic_[position];
    move(position, value_[j] == lower_[j] ? upper_[j] - lower_[j] : lower_[j] - upper_[j]);
    value_[j] = value_[j] <= (lower_[j] + upper_[j]) / 2 ? lower_[j] : upper_[j];
  }
  const int b = basic_[r];
  const double target = increase ? lower_[b] : upper_[b];
  move(chosen.position, (target - value_[b]) / row(r)[chosen.position]);
  value_[b] = target;
  pivot(r, chosen.position);
}

// Exchanges the basic variable of row r and the nonbasic one at position q.
void Simplex::pivot(int r, int q) {
  double* pivot_row = row(r);
  const double inverse = 1 / pivot_row[q];
  touched_.clear();
  for (std::size_t j = 0; j < columns_; ++j) {
    if (static_cast<int>(j) == q || pivot_row[j] == 0) continue;
    pivot_row[j] *= -inverse;
    if (std::abs(pivot_row[j]) < zero_entry) {
      pivot_row[j] = 0;
      continue;
    }
    touched_.push_back(static_cast<int>(j));
  }
  pivot_row[q] = inverse;
  const auto eliminate = [&](double* other) {
    const double factor = other[q];
    if (factor == 0) return;
    for (const int j : touched_) {
      other[j] += factor * pivot_row[j];
      if (std::abs(other[j]) < zero_entry) other[j] = 0;
    }
    other[q] = factor * inverse;
  };
  for (std::size_t i = 0; i <= rows_; ++i)
    if (static_cast<int>(i) != r) eliminate(row(static_cast<int>(i)));
  eliminate(working_.data());
  std::swap(basic_[r], nonbasic_[q]);
  ++pivots_;
  ++since_rebuild_;
}

// By amounts that no two positions share, away from zero on the side where each stays dual feasible.
void Simplex::shift_costs() {
  double scale = 1e-6;
  for (const double cost : cost_) scale = std::max(scale, 1e-6 * std::abs(cost));
  for (std::size_t q = 0; q < columns_; ++q) {
    const int j = nonbasic_[q];
    const double amount = scale * (0.5 + uniform_at(static_cast<std::uint64_t>(pivots_), q));
    working_[q] += value_[j] == lower_[j] ? amount : -amount;
  }
}

// How far the activities are from what the columns' values make of them.
double Simplex::residual() const {
  double worst = 0;
  for (std::size_t i = 0; i < rows_; ++i) {
    double sum = 0, scale = 1;
    for (const auto& [column, factor] : model_.rows[i].entries) {
      sum += factor * value_[column];
      scale = std::max(scale, std::abs(factor * value_[column]));
    }
    worst = std::max(worst, std::abs(sum - value_[columns_ + i]) / scale);
  }
  return worst;
}

Simplex::End Simplex::run(double cutoff, Instant deadline) {
  const double* reduced = row(static_cast<int>(rows_));
  working_.assign(reduced, reduced + columns_);
  place_nonbasic();
  bool shifted = false;
  int stalled = 0;
  double best_bound = bound();
  for (std::int64_t steps = 0;; ++steps) {
    if (best_bound >= cutoff) return End::cutoff;
    if (steps % 16 == 15 && Clock::now() >= deadline) return End::limit;
    if (since_rebuild_ >= rebuild_after) {
      rebuild();
      shifted = false;
      place_nonbasic();
    }
    const int r = leaving();
    if (r < 0) {
      if (!shifted && residual() <= 1e-8) return End::optimal;
      if (shifted)
        working_.assign(row(static_cast<int>(rows_)), row(static_cast<int>(rows_)) + columns_);
      else if (since_rebuild_ == 0)
        return End::optimal;  // as exact as the numbers allow; the caller checks
      else
        rebuild();
      shifted = false;
      place_nonbasic();
      continue;
    }
    const bool increase = value_[basic_[r]] < lower_[basic_[r]];
    const Entering chosen = entering(r, increase);
    if (chosen.position < 0) {
      if (since_rebuild_ <= fresh_pivots) return End::infeasible;
      rebuild();
      shifted = false;
      place_nonbasic();
      continue;
    }
    step(r, chosen, increase);
    const double now = bound();
    stalled = now > best_bound + 1e-12 * std::max(1.0, std::abs(best_bound)) ? 0 : stalled + 1;
    best_bound = std::max(best_bound, now);
    if (stalled >= stalled_steps) {
      shift_costs();
      shifted = true;
      stalled = 0;
    }
  }
}

double Simplex::objective() const {
  double sum = 0;
  for (std::size_t j = 0; j < columns_; ++j) sum += cost_[j] * value_[j];
  return sum;
}

double Simplex::bound() const {
  const double* reduced = row(static_cast<int>(rows_));
  double sum = 0;
  for (std::size_t q = 0; q < columns_; ++q) {
    const int j = nonbasic_[q];
    sum += std::min(reduced[q] * lower_[j], reduced[q] * upper_[j]);
  }
  return sum;
}

std::vector<double> Simplex::reduced_costs() const {
  std::vector<double> all(columns_ + rows_, 0);
  for (std::size_t q = 0; q < columns_; ++q) all[nonbasic_[q]] = row(static_cast<int>(rows_))[q];
  return all;
}

}  // namespace motley
