#include "motley/probe/fit/calibrate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace motley {
namespace {

// Seconds are linear in these as long as it is known what bounds products, attention and head.
enum Unknown : std::size_t {
  bandwidth,
  product_rate,
  kv_bandwidth,  // of attention
  attention_rate,
  layer_overhead,
  step_overhead
};
constexpr std::size_t unknowns = 6;  // of rates, the inverse
using Coefficients = std::array<double, unknowns>;

// Bytes and FLOPs of which the slower counts, or both in turn, and the rates they go at.
struct Work {
  double bytes = 0, flops = 0;
  double bytes_per_s = 0, flop_per_s = 0;
  Unknown memory, compute;
  bool in_turn = false;
  double reading_s() const { return bytes / bytes_per_s; }
  double computing_s() const { return flops / flop_per_s; }
  bool reads() const { return in_turn || reading_s() > computing_s(); }
  bool computes() const { return in_turn || reading_s() <= computing_s(); }
  double seconds() const { return in_turn ? reading_s() + computing_s() : std::max(reading_s(), computing_s()); }
};

std::array<Work, 3> works_of(const StepSample& sample, const StepRates& rates) {
  const Rank& rank = *sample.rank;
  const BlockWork& block = rank.blocks.front();
  const StepLoad& load = sample.load;
  return {Work{.bytes = sample.layers * static_cast<double>(block.bytes),
               .flops = sample.layers * load.tokens * block.flops,
               .bytes_per_s = rates.bandwidth_bytes_per_s,
               .flop_per_s = rates.product_flop_per_s,
               .memory = bandwidth,
               .compute = product_rate,
               .in_turn = rates.in_turn},
          Work{.bytes = sample.layers * load.cached * block.kv_bytes,
               .flops = sample.layers * load.tokens * load.context * block.attention_flops,
               .bytes_per_s = rates.attention_bandwidth_bytes_per_s,
               .flop_per_s = rates.attention_flop_per_s,
               .memory = kv_bandwidth,
               .compute = attention_rate},
          Work{.bytes = std::min(1.0, load.logits) * rank.head_bytes,
               .flops = load.logits * rank.head_flops,
               .bytes_per_s = rates.bandwidth_bytes_per_s,
               .flop_per_s = rates.product_flop_per_s,
               .memory = bandwidth,
               .compute = product_rate,
               .in_turn = rates.in_turn}};
}

Coefficients coefficients(const StepSample& sample, const StepRates& rates) {
  Coefficients row{};
  row[layer_overhead] = sample.layers;
  row[step_overhead] = 1;
  for (const Work& work : works_of(sample, rates)) {
    if (work.reads()) row[work.memory] += work.bytes;
    if (work.computes()) row[work.compute] += work.flops;
  }
  return row;
}

// Least squares of sum - 1 over the unknowns in `used`, by the normal equations in units of each unknown's own size.
Coefficients solve(const std::vector<Coefficients>& rows, const std::vector<double>& weights,
                   const std::array<bool, unknowns>& used) {
  Coefficients scale{};
  for (const Coefficients& row : rows)
    for (std::size_t i = 0; i < unknowns; ++i) scale[i] = std::max(scale[i], row[i]);
  std::array<std::array<double, unknowns + 1>, unknowns> equations{};
  for (std::size_t i = 0; i < unknowns; ++i) {
    const bool present = used[i] && scale[i] > 0;
    if (!present) {
      equations[i][i] = 1;
      continue;
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double weighted = weights[r] * rows[r][i] / scale[i];
      for (std::size_t j = 0; j < unknowns; ++j)
        if (used[j] && scale[j] > 0) equations[i][j] += weighted * rows[r][j] / scale[j];
      equations[i][unknowns] += weighted;
    }
  }
  for (std::size_t pivot = 0; pivot < unknowns; ++pivot) {
    std::size_t best = pivot;
    for (std::size_t i = pivot; i < unknowns; ++i)
      if (std::abs(equations[i][pivot]) > std::abs(equations[best][pivot])) best = i;
    std::swap(equations[pivot], equations[best]);
    if (equations[pivot][pivot] == 0) continue;
    for (std::size_t i = 0; i < unknowns; ++i) {
      if (i == pivot) continue;
      const double factor = equations[i][pivot] / equations[pivot][pivot];
      for (std::size_t j = pivot; j <= unknowns; ++j) equations[i][j] -= factor * equations[pivot][j];
    }
  }
  Coefficients solution{};
  for (std::size_t i = 0; i < unknowns; ++i)
    if (equations[i][i] != 0 && scale[i] > 0) solution[i] = equations[i][unknowns] / equations[i][i] / scale[i];
  return solution;
}

// What would be negative is taken out, the worst first.
Coefficients solve_without_negatives(const std::vector<Coefficients>& rows, const std::vector<double>& weights) {
  std::array<bool, unknowns> used;
  used.fill(true);
  for (;;) {
    const Coefficients solution = solve(rows, weights, used);
    const auto least = std::min_element(solution.begin(), solution.end());
    if (*least >= 0) return solution;
    used[static_cast<std::size_t>(least - solution.begin())] = false;
  }
}

StepRates rates_of(const Coefficients& solution, bool in_turn) {
  return {.bandwidth_bytes_per_s = 1 / solution[bandwidth],
          .product_flop_per_s = 1 / solution[product_rate],
          .attention_bandwidth_bytes_per_s = 1 / solution[kv_bandwidth],
          .attention_flop_per_s = 1 / solution[attention_rate],
          .overhead = {.layer_s = solution[layer_overhead], .step_s = solution[step_overhead]},
          .in_turn = in_turn};
}

// The point in [low, high] where a monotone function of its logarithm crosses zero from below, or an end.
template <class Function>
double bisect(double low, double high, Function rises) {
  constexpr int halvings = 60;
  for (int i = 0; i < halvings; ++i) {
    const double middle = std::sqrt(low * high);
    (rises(middle) < 0 ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

}  // namespace

double step_s(const StepSample& sample, const StepRates& rates) {
  double seconds = sample.layers * rates.overhead.layer_s + rates.overhead.step_s;
  for (const Work& work : works_of(sample, rates)) seconds += work.seconds();
  return seconds;
}

namespace {

StepRates fit_steps(const std::vector<StepSample>& samples, bool in_turn) {
  // Where to begin: any processor reads for one row longer than it computes, and the other way round for many.
  StepRates rates{.bandwidth_bytes_per_s = 10e9,
                  .product_flop_per_s = 30e9,
                  .attention_bandwidth_bytes_per_s = 5e9,
                  .attention_flop_per_s = 15e9,
                  .overhead = {},
                  .in_turn = in_turn};
  constexpr int rounds = 50;  // what bounds which sample settles in a few, the weights take more
  constexpr double no_deviation = 0.01;
  std::vector<double> weights(samples.size(), 1);
  for (int round = 0; round < rounds; ++round) {
    std::vector<Coefficients> rows;
    for (const StepSample& sample : samples) {
      rows.push_back(coefficients(sample, rates));
      for (double& entry : rows.back()) entry /= sample.seconds;
    }
    rates = rates_of(solve_without_negatives(rows, weights), in_turn);
    // Absolute deviations by weighted squares: a sample that something disturbed does not drag the others along.
    for (std::size_t i = 0; i < samples.size(); ++i)
      weights[i] = 1 / std::max(no_deviation, std::abs(step_s(samples[i], rates) / samples[i].seconds - 1));
  }
  return rates;
}

double sum_of_errors(const std::vector<StepSample>& samples, const StepRates& rates) {
  double sum = 0;
  for (const StepSample& sample : samples) sum += std::abs(step_s(sample, rates) / sample.seconds - 1);
  return sum;
}

}  // namespace

StepRates fit_steps(const std::vector<StepSample>& samples) {
  MOTLEY_CHECK(!samples.empty());
  constexpr double clearly = 0.8;
  const StepRates at_once = fit_steps(samples, false), in_turn = fit_steps(samples, true);
  const bool all_shown = std::isfinite(in_turn.bandwidth_bytes_per_s) && std::isfinite(in_turn.product_flop_per_s);
  return all_shown && sum_of_errors(samples, in_turn) < clearly * sum_of_errors(samples, at_once) ? in_turn : at_once;
}

StepRates with_unseen_rates(StepRates rates, const std::vector<StepSample>& samples) {
  constexpr std::array<double StepRates::*, 4> rate_of = {
      &StepRates::bandwidth_bytes_per_s, &StepRates::product_flop_per_s, &StepRates::attention_bandwidth_bytes_per_s,
      &StepRates::attention_flop_per_s};
  StepRates seen = rates;
  std::array<double, 4> least{};
  for (const StepSample& sample : samples)
    for (const Work& work : works_of(sample, rates)) {
      const double reading_s = work.reading_s(), computing_s = work.computing_s();
      if (computing_s > 0) least[work.memory] = std::max(least[work.memory], work.bytes / computing_s);
      if (reading_s > 0) least[work.compute] = std::max(least[work.compute], work.flops / reading_s);
    }
  for (std::size_t i = 0; i < rate_of.size(); ++i)
    if (std::isinf(rates.*rate_of[i]) && least[i] > 0) seen.*rate_of[i] = least[i];
  return seen;
}

FitError fit_error(const std::vector<StepSample>& samples, const StepRates& rates) {
  std::vector<double> errors;
  for (const StepSample& sample : samples) errors.push_back(std::abs(step_s(sample, rates) / sample.seconds - 1));
  std::ranges::sort(errors);
  return errors.empty() ? FitError{} : FitError{errors[errors.size() / 2], errors.back()};
}

PathSpeed fit_link(const StepCost& cost, TensorGroup group, double layers, double crowding, const GroupSample& small,
                   const GroupSample& large) {
  const auto excess = [&](PathSpeed link, const GroupSample& sample) {
    group.link = link;
    return crowding * (layers * cost.block_s(group, 0, sample.load) + cost.ends_s(group, {true, true}, sample.load)) -
           sample.seconds;
  };
  PathSpeed link{.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e12};
  for (int round = 0; round < 4; ++round) {  // each hardly depends on the other
    link.latency_s = bisect(1e-9, 1.0, [&](double s) { return excess({s, link.bandwidth_bytes_per_s}, small); });
    link.bandwidth_bytes_per_s = 1 / bisect(1e-12, 1e-5, [&](double s_per_byte) {
                                   return excess({link.latency_s, 1 / s_per_byte}, large);
                                 });
  }
  return link;
}

}  // namespace motley
