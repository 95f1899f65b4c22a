#include "motley/planner/offload/flexgen_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>

#include "motley/solve/simplex.hpp"

namespace motley {
namespace {

constexpr std::size_t share_count = 9;  // weights, KV, activations; each device, host, disk
constexpr std::size_t weight_shares = 3;

double& share(FlexgenPolicy& policy, std::size_t i) {
  TierShares& shares = i < 3 ? policy.weights : i < 6 ? policy.kv : policy.activations;
  return i % 3 == 0 ? shares.device : i % 3 == 1 ? shares.host : shares.disk;
}

// Seconds of a layer, and peaks as parts of what may be used: affine in the shares, and in the number of batches.
enum Figure : std::size_t {
  prefill_in,
  prefill_out,
  prefill_compute,  // the largest counts
  decode_upload,    // on top of the largest of
  decode_download,
  decode_read,
  decode_write,
  decode_compute,  // these
  first_peak,
  last_peak = first_peak + 4,
  figure_count
};
using Figures = std::array<double, figure_count>;

Figures figures(const FlexgenCase& input, const FlexgenPolicy& policy, double headroom) {
  const FlexgenTimes times = flexgen_times(input, policy);
  const FlexgenMemory memory = flexgen_memory(input, policy);
  const FlexgenPhase &p = times.prefill, &g = times.decode;
  const auto part = [&](double bytes, double of) { return of > 0 ? bytes / (headroom * of) : 0; };
  return {p.upload + p.disk_read,
          p.download + p.disk_write,
          p.compute,
          g.upload,
          g.download,
          g.disk_read,
          g.disk_write,
          g.compute,
          part(memory.device_prefill, input.device_bytes),
          part(memory.device_decode, input.device_bytes),
          part(memory.host_prefill, input.host_bytes),
          part(memory.host_decode, input.host_bytes),
          part(memory.disk, input.disk_bytes)};
}

// figure = once + batches x each + sum over shares of (slope + batches x slope_each) x share; of weights nothing goes
// by the batches.
struct Affine {
  Figures once = {}, each = {};
  std::array<Figures, share_count> slope = {}, slope_each = {};
};

Affine affine(const FlexgenCase& input, std::int64_t batch, double headroom) {
  FlexgenPolicy policy{static_cast<double>(batch), 1, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  const auto at = [&](double batches) {
    policy.batches = batches;
    return figures(input, policy, headroom);
  };
  Affine result;
  const Figures one = at(1), two = at(2);
  for (std::size_t f = 0; f < figure_count; ++f) {
    result.each[f] = two[f] - one[f];
    result.once[f] = one[f] - result.each[f];
  }
  for (std::size_t i = 0; i < share_count; ++i) {
    share(policy, i) = 1;
    const Figures with_one = at(1), with_two = at(2);
    share(policy, i) = 0;
    for (std::size_t f = 0; f < figure_count; ++f) {
      const double at_one = with_one[f] - one[f], at_two = with_two[f] - two[f];
      result.slope_each[i][f] = i < weight_shares ? 0 : at_two - at_one;
      result.slope[i][f] = at_one - result.slope_each[i][f];
    }
  }
  return result;
}

struct Relaxed {
  double total_s = 0;  // of a batch: no number of batches in the range takes less
  double batches = 1;  // where it takes this
  std::array<double, share_count> shares = {};
};

// All numbers of batches in [lo, hi]. Columns: v = lo / batches; shares of weights times v; the others, and these times
// v; seconds of a layer in both phases. All figures are multiplied by v.
class RangeProgram {
 public:
  RangeProgram(const FlexgenCase& input, const Affine& affine, std::int64_t lo, std::int64_t hi)
      : affine_(affine), lo_(static_cast<double>(lo)), least_(lo_ / static_cast<double>(hi)) {
    const double decodes = input.output - 1;
    unit_s_ = input.layers * lo_ * (affine.each[prefill_compute] + decodes * affine.each[decode_compute]);
    v_ = model_.add_column({.lower = least_, .upper = 1});
    for (std::size_t i = 0; i < share_count; ++i) {
      // Hidden states are never on disk, and nothing is where there is none.
      const bool none = i == 8 || (i % 3 == 2 && input.disk_bytes <= 0) || (i % 3 == 1 && input.host_bytes <= 0);
      times_v_[i] = model_.add_column({.upper = none ? 0.0 : 1.0});
      if (i >= weight_shares) share_[i] = model_.add_column({.upper = none ? 0.0 : 1.0});
    }
    double longest = 0;
    for (std::size_t f = 0; f < first_peak; ++f) {
      longest += affine.once[f] + lo_ * affine.each[f];
      for (std::size_t i = 0; i < share_count; ++i) longest += affine.slope[i][f] + lo_ * affine.slope_each[i][f];
    }
    const double longest_units = input.layers * (1 + decodes) * longest / unit_s_;
    prefill_ = model_.add_column({.cost = 1, .upper = longest_units});
    decode_ = model_.add_column({.cost = 1, .upper = longest_units});
    for (const std::size_t figure : {prefill_in, prefill_out, prefill_compute})
      add_time(prefill_, input.layers / unit_s_, {figure});
    for (const std::size_t figure : {decode_download, decode_read, decode_write, decode_compute})
      add_time(decode_, input.layers * decodes / unit_s_, {decode_upload, figure});
    for (std::size_t figure = first_peak; figure <= last_peak; ++figure) add_peak(figure);
    add_products();
  }

  std::optional<Relaxed> solve() const { return solve(model_); }

  // Of all shares that take the least time, those that keep most on the device, and least on disk.
  std::optional<Relaxed> solve_nearest() const {
    const auto fastest = solve();
    if (!fastest) return {};
    constexpr double slack = 1e-9;
    MilpModel nearest = model_;
    for (MilpColumn& column : nearest.columns) column.cost = 0;
    for (std::size_t i = 0; i < share_count; ++i)
      nearest.columns[static_cast<std::size_t>(times_v_[i])].cost = static_cast<double>(i % 3);
    nearest.add_row(
        {.upper = (1 + slack) * fastest->total_s * lo_ / unit_s_, .entries = {{prefill_, 1}, {decode_, 1}}});
    const auto found = solve(nearest);
    return found ? found : fastest;
  }

 private:
  std::optional<Relaxed> solve(const MilpModel& model) const {
    Simplex simplex(model);
    if (simplex.run(std::numeric_limits<double>::infinity(), Instant::max()) != Simplex::End::optimal) return {};
    const double v = simplex.value(v_);
    Relaxed found{.total_s = (simplex.value(prefill_) + simplex.value(decode_)) * unit_s_ / lo_, .batches = lo_ / v};
    for (std::size_t i = 0; i < share_count; ++i)
      found.shares[i] = i < weight_shares ? simplex.value(times_v_[i]) / v : simplex.value(share_[i]);
    return found;
  }

  struct Sum {
    std::vector<MilpEntry> entries;
    double constant = 0;
  };
  Sum sum_of(std::initializer_list<std::size_t> summed, double factor) const {
    const auto total = [&](const Figures& figures) {
      double value = 0;
      for (const std::size_t figure : summed) value += factor * figures[figure];
      return value;
    };
    Sum sum{{{v_, total(affine_.once)}}, lo_ * total(affine_.each)};
    for (std::size_t i = 0; i < share_count; ++i) {
      sum.entries.push_back({times_v_[i], total(affine_.slope[i])});
      if (i >= weight_shares) sum.entries.push_back({share_[i], lo_ * total(affine_.slope_each[i])});
    }
    return sum;
  }
  // sum <= time
  void add_time(int time, double factor, std::initializer_list<std::size_t> summed) {
    Sum sum = sum_of(summed, factor);
    sum.entries.push_back({time, -1});
    model_.add_row({.upper = -sum.constant, .entries = std::move(sum.entries)});
  }
  // peak <= v
  void add_peak(std::size_t figure) {
    Sum sum = sum_of({figure}, 1);
    sum.entries.front().value -= 1;
    model_.add_row({.upper = -sum.constant, .entries = std::move(sum.entries)});
  }
  void add_products() {
    for (const std::size_t first : {0, 3, 6}) {
      MilpRow products{.lower = 0, .upper = 0, .entries = {{v_, -1}}}, shares{.lower = 1, .upper = 1};
      for (std::size_t i = first; i < first + 3; ++i) {
        products.entries.push_back({times_v_[i], 1});
        if (first > 0) shares.entries.push_back({share_[i], 1});
      }
      model_.add_row(std::move(products));
      if (first > 0) model_.add_row(std::move(shares));
    }
    // The envelopes of share x v, with v between least_ and 1.
    for (std::size_t i = weight_shares; i < share_count; ++i) {
      const int x = times_v_[i], s = share_[i];
      model_.add_row({.lower = 0, .entries = {{x, 1}, {s, -least_}}});
      model_.add_row({.upper = 0, .entries = {{x, 1}, {s, -1}}});
      model_.add_row({.upper = -least_, .entries = {{x, 1}, {v_, -1}, {s, -least_}}});
      model_.add_row({.lower = -1, .entries = {{x, 1}, {v_, -1}, {s, -1}}});
    }
  }

  const Affine& affine_;
  double lo_, least_;
  double unit_s_ = 1;
  MilpModel model_;
  int v_ = 0, prefill_ = 0, decode_ = 0;
  std::array<int, share_count> times_v_ = {}, share_ = {};
};

// Shares that sum to 1 but for the last bit.
FlexgenPolicy policy_of(std::int64_t batch, std::int64_t batches, const std::array<double, share_count>& shares) {
  FlexgenPolicy policy{static_cast<double>(batch), static_cast<double>(batches), {}, {}, {}};
  for (std::size_t first = 0; first < share_count; first += 3) {
    double sum = 0;
    std::array<double, 3> three = {};
    for (std::size_t i = 0; i < 3; ++i) sum += three[i] = std::clamp(shares[first + i], 0.0, 1.0);
    for (std::size_t i = 0; i < 3; ++i) share(policy, first + i) = three[i] / sum;
  }
  return policy;
}

std::optional<FlexgenFound> with_shape(const FlexgenCase& input, const Affine& affine, std::int64_t batch,
                                       std::int64_t batches) {
  const auto relaxed = RangeProgram(input, affine, batches, batches).solve();
  if (!relaxed) return {};
  FlexgenFound found{.policy = policy_of(batch, batches, relaxed->shares), .evaluated = 1};
  found.tokens_per_s = flexgen_times(input, found.policy).tokens_per_s;
  return found;
}

struct Range {
  double bound = 0;  // tokens/s
  std::int64_t batch = 1, lo = 1, hi = 1;
  std::int64_t best = 1;  // number of batches that the bound suggests
  bool operator<(const Range& other) const { return bound < other.bound; }
};

}  // namespace

std::optional<FlexgenFound> best_shares(const FlexgenCase& input, std::int64_t batch, std::int64_t batches,
                                        double headroom) {
  return with_shape(input, affine(input, batch, headroom), batch, batches);
}

std::optional<FlexgenFound> search_flexgen(const FlexgenCase& input, double headroom) {
  constexpr double gap = 1e-9;
  constexpr std::int64_t most_batch = 4096;
  const double most_sequences = headroom * (input.device_bytes + input.host_bytes + input.disk_bytes) /
                                (4 * input.prompt * input.hidden * input.layers);
  std::int64_t evaluated = 0;
  std::vector<Affine> affines;
  std::priority_queue<Range> open;
  const auto push = [&](std::int64_t batch, std::int64_t lo, std::int64_t hi) {
    if (lo > hi) return false;
    ++evaluated;
    const auto relaxed = RangeProgram(input, affines[static_cast<std::size_t>(batch - 1)], lo, hi).solve();
    if (!relaxed) return false;
    open.push({.bound = static_cast<double>(batch) * input.output / relaxed->total_s,
               .batch = batch,
               .lo = lo,
               .hi = hi,
               .best = std::clamp(static_cast<std::int64_t>(std::llround(relaxed->batches)), lo, hi)});
    return true;
  };
  for (std::int64_t batch = 1; batch <= most_batch; ++batch) {
    affines.push_back(affine(input, batch, headroom));
    // Working memory grows with the batch: where one batch alone does not fit, no larger one does.
    const auto hi = static_cast<std::int64_t>(most_sequences / static_cast<double>(batch));
    if (!push(batch, 1, hi)) break;
  }
  std::optional<FlexgenFound> best;
  while (!open.empty() && (!best || open.top().bound > best->tokens_per_s * (1 + gap))) {
    const Range range = open.top();
    open.pop();
    ++evaluated;
    const auto found = with_shape(input, affines[static_cast<std::size_t>(range.batch - 1)], range.batch, range.best);
    if (found && (!best || found->tokens_per_s > best->tokens_per_s)) best = found;
    push(range.batch, range.lo, range.best - 1);
    push(range.batch, range.best + 1, range.hi);
  }
  if (!best) return {};
  const auto batch = static_cast<std::int64_t>(best->policy.batch);
  const auto batches = static_cast<std::int64_t>(best->policy.batches);
  const auto nearest =
      RangeProgram(input, affines[static_cast<std::size_t>(batch - 1)], batches, batches).solve_nearest();
  best->policy = policy_of(batch, batches, nearest->shares);
  best->tokens_per_s = flexgen_times(input, best->policy).tokens_per_s;
  best->evaluated = evaluated + 2;
  return best;
}

}  // namespace motley
