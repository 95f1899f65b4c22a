#include "motley/cost/collective/genmodel_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::size_t fitted_constants = 4;
using Equation = std::array<double, fitted_constants>;

PlanCounts counts_of(const MeasuredCollective& one, int threshold) {
  return one.factors.empty() ? ring_counts(one.ranks) : factored_counts(one.factors, threshold);
}

// Relative: every measurement's row is divided by its time, so that each should come to 1.
std::vector<Equation> rows_of(const std::vector<MeasuredCollective>& measured, int threshold) {
  std::vector<Equation> rows;
  for (const auto& one : measured) {
    const PlanCounts counts = counts_of(one, threshold);
    rows.push_back({counts.rounds / one.seconds, counts.added * one.bytes / one.seconds,
                    counts.accessed * one.bytes / one.seconds, counts.excess * one.bytes / one.seconds});
  }
  return rows;
}

// Least squares over the columns in `used`; none where they are not independent.
bool least_squares(const std::vector<Equation>& rows, unsigned used, Equation& answer) {
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < fitted_constants; ++c)
    if (used & (1U << c)) columns.push_back(c);
  const std::size_t size = columns.size();
  std::array<double, fitted_constants> scale{};
  for (const std::size_t c : columns) {
    for (const auto& row : rows) scale[c] += row[c] * row[c];
    if (scale[c] <= 0) return false;
    scale[c] = std::sqrt(scale[c]);
  }
  std::vector<std::vector<double>> normal(size, std::vector<double>(size + 1, 0));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j)
        normal[i][j] += row[columns[i]] / scale[columns[i]] * row[columns[j]] / scale[columns[j]];
      normal[i][size] += row[columns[i]] / scale[columns[i]];
    }
  for (std::size_t i = 0; i < size; ++i) {
    std::size_t pivot = i;
    for (std::size_t k = i + 1; k < size; ++k)
      if (std::abs(normal[k][i]) > std::abs(normal[pivot][i])) pivot = k;
    if (std::abs(normal[pivot][i]) < 1e-12) return false;
    std::swap(normal[i], normal[pivot]);
    for (std::size_t k = 0; k < size; ++k) {
      if (k == i) continue;
      const double factor = normal[k][i] / normal[i][i];
      for (std::size_t j = i; j <= size; ++j) normal[k][j] -= factor * normal[i][j];
    }
  }
  answer = {};
  for (std::size_t i = 0; i < size; ++i) answer[columns[i]] = normal[i][size] / normal[i][i] / scale[columns[i]];
  return std::all_of(answer.begin(), answer.end(), [](double value) { return value >= 0; });
}

double error_of(const Equation& row, const Equation& constants) {
  double sum = -1;
  for (std::size_t c = 0; c < fitted_constants; ++c) sum += row[c] * constants[c];
  return std::abs(sum);
}

void check_measured(const std::vector<MeasuredCollective>& measured) {
  std::set<int> fan_ins;
  for (const auto& one : measured) {
    int product = 1;
    for (const int factor : one.factors) {
      if (factor < 2) throw input_error(fmt::format("a factor of {} in a measured collective", factor), "at least 2");
      product *= factor;
      fan_ins.insert(factor);
    }
    if (one.factors.empty()) fan_ins.insert(2);
    if (one.ranks < 2 || (!one.factors.empty() && product != one.ranks) || !(one.bytes > 0) || !(one.seconds > 0))
      throw input_error(fmt::format("the measured collective is invalid: {} bytes over {} ranks in {} s", one.bytes,
                                    one.ranks, one.seconds),
                        "bytes and seconds are above 0, and the factors multiply to the ranks");
  }
  if (fan_ins.size() < 2)
    throw input_error(
        "all measured collectives have the same fan-in",
        "memory access shows only between different ones: measure direct exchanges of 2, 4, 8, ... ranks");
  if (measured.size() < fitted_constants)
    throw input_error(fmt::format("{} measurements cannot determine {} constants", measured.size(), fitted_constants),
                      "measure several sizes at several fan-ins");
}

}  // namespace

GenModelFit fit_genmodel(const std::vector<MeasuredCollective>& measured, const std::string& date) {
  check_measured(measured);
  int largest = 2;
  for (const auto& one : measured)
    for (const int factor : one.factors) largest = std::max(largest, factor);
  GenModelFit best;
  best.residual = -1;
  // From the highest threshold down: of equal fits the one without incast.
  for (int threshold = largest; threshold >= 2; --threshold) {
    const auto rows = rows_of(measured, threshold);
    for (unsigned used = 1; used < (1U << fitted_constants); ++used) {
      Equation constants;
      if (!least_squares(rows, used, constants)) continue;
      double squares = 0, worst = 0;
      for (const auto& row : rows) {
        squares += error_of(row, constants) * error_of(row, constants);
        worst = std::max(worst, error_of(row, constants));
      }
      const double residual = std::sqrt(squares / static_cast<double>(rows.size()));
      if (best.residual >= 0 && residual >= best.residual - 1e-9) continue;
      best = {constants[0],
              constants[1],
              constants[2],
              constants[3],
              constants[3] > 0 ? threshold : 0,
              residual,
              worst,
              static_cast<int>(measured.size()),
              date};
    }
  }
  return best;
}

GenModelConstants constants_of(const GenModelFit& fit, double beta_s_per_byte) {
  if (fit.largest_error > most_fit_error)
    throw input_error(fmt::format("the fit of {} has an error of up to {:.0f} %", fit.date, 100 * fit.largest_error),
                      "measure again on a quiet network: fits with an error above 10 % are not used");
  return {.alpha_s = fit.alpha_s,
          .beta_s_per_byte = beta_s_per_byte,
          .gamma_s_per_byte = std::max(0.0, fit.transfer_s_per_byte - 2 * beta_s_per_byte),
          .delta_s_per_byte = fit.delta_s_per_byte,
          .epsilon_s_per_byte = fit.epsilon_s_per_byte,
          .threshold = fit.threshold};
}

}  // namespace motley
