#include "motley/cost/published/galvatron.hpp"

#include <algorithm>
#include <numeric>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double shard_pad = 0.003;    // of sharded states, empirical
constexpr double change_scale = 1e-7;  // bytes x ms/MB to seconds; the true factor is 1e-3 / 2^20

double by_degree(const std::vector<double>& values, int degree) {
  return values.at(static_cast<std::size_t>(log2_of(degree)));
}

int samples(const GalvatronStrategy& strategy, const GalvatronRun& run) {
  return run.batch / run.micro_batches / strategy.data;
}

int in_flight(const GalvatronRun& run, int stages, int stage) {
  if (stages == 1) return 1;
  return run.schedule == GalvatronSchedule::gpipe ? run.micro_batches : stages - stage;
}

// Compute that a collective hides behind, slowed while both run.
double hidden(double communication, double compute, double slowdown) {
  const double slowed = compute * slowdown;
  return slowed > communication ? communication + (slowed - communication) / slowdown : communication;
}

// Which of two strategies differ only in sharding, in recomputation, or in these.
struct Difference {
  bool degrees = false, kind = false, states = false, recompute = false;
};
Difference difference(const GalvatronStrategy& a, const GalvatronStrategy& b) {
  return {.degrees = a.split() != b.split() || a.data != b.data,
          .kind = a.tensor != b.tensor || a.sequence != b.sequence,
          .states = a.states != b.states,
          .recompute = a.recompute != b.recompute};
}

// Seconds that order choices which cost the same: sharded or recomputed layers first.
double order_bias(const GalvatronStrategy& from, const GalvatronStrategy& to) {
  const Difference d = difference(from, to);
  const bool sharded = to.states == GalvatronStates::zero3;
  if (d.degrees) return 0;
  if (d.kind) return !d.states && !d.recompute && to.sequence > 1 ? 1e-10 : 0;
  if ((d.states || d.recompute) && sharded && to.recompute) return 3e-9;
  if (d.states && d.recompute) return from.states == GalvatronStates::zero3 && to.recompute ? 1e-9 : 0;
  if (d.states) return sharded ? 1e-9 : 0;
  return d.recompute && to.recompute ? 2e-9 : 0;
}

}  // namespace

double galvatron_overlap(double compute, double communication, double slowdown) {
  return std::max(compute, communication) + (slowdown - 1) * std::min(compute, communication);
}

double galvatron_states_ratio(GalvatronStates states, int ranks, const GalvatronRun& run, bool mixed_precision) {
  if (states == GalvatronStates::replicated) return 1;
  const double sharded = 1.0 / ranks + shard_pad;
  const double whole = mixed_precision ? 1.0 / 8 : 1.0 / 4;  // what of the states a gradient or a working copy is
  const bool zero3 = states == GalvatronStates::zero3;
  // Gradients that wait for the end of the step stay whole, and so do the parameters under ZeRO-2.
  if (run.micro_batches > 1 && run.reduction == GradientReduction::once) {
    const double kept = (zero3 ? 1 : 2) * whole;
    return (1 - kept) * sharded + kept;
  }
  // One more fp32 gradient where every micro-batch is reduced; released so for ZeRO-2 only in mixed precision.
  const bool extra = run.micro_batches > 1 && (zero3 || mixed_precision);
  return (zero3 ? sharded : (1 - whole) * sharded + whole) * (extra ? 1.25 : 1);
}

GalvatronForm::Line GalvatronForm::fit(const std::vector<double>& x, const std::vector<double>& y) {
  const double n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double covariance = 0, variance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    covariance += (x[i] - mean_x) * (y[i] - mean_y);
    variance += (x[i] - mean_x) * (x[i] - mean_x);
  }
  const double slope = covariance / variance;
  return {slope, mean_y - slope * mean_x};
}

GalvatronForm::GalvatronForm(GalvatronProfile profile) : profile_(std::move(profile)) {
  const auto fit_per_sample = [](const std::vector<double>& per_sample) {
    std::vector<double> x, y;
    for (const double ms : per_sample) {
      x.push_back(static_cast<double>(x.size() + 1));
      y.push_back(ms * x.back());
    }
    return fit(x, y);
  };
  layer_ms_ = fit_per_sample(profile_.layer_forward_ms);
  ends_ms_ = fit_per_sample(profile_.ends_forward_ms);
  for (const auto& row : profile_.all_reduce_ms) {
    std::vector<double> half = row;  // an all-gather moves half of what an all-reduce does
    for (auto& ms : half) ms /= 2;
    all_gather_.push_back({half, fit(profile_.message_mib, half)});
  }
  for (const auto& row : profile_.all_to_all_ms) all_to_all_.push_back({row, fit(profile_.message_mib, row)});
}

double GalvatronForm::ms_per_mib(int ranks, bool consecutive) const {
  if (ranks == 1) return 0;
  const auto index = static_cast<std::size_t>(log2_of(ranks) - 1);
  const bool far = !consecutive && index < profile_.strided_gb_per_s.size();
  return 1 / (far ? profile_.strided_gb_per_s : profile_.consecutive_gb_per_s).at(index);
}

double GalvatronForm::collective_ms(const std::vector<Collective>& kind, int ranks, double bytes) const {
  if (ranks == 1) return 0;
  const Collective& group = kind.at(static_cast<std::size_t>(log2_of(ranks) - 1));
  for (std::size_t i = 0; i < group.ms.size(); ++i)
    if (profile_.message_mib[i] * galvatron_mib == bytes) return group.ms[i];
  return group.fit.at(bytes / galvatron_mib);
}

double GalvatronForm::activation_bytes(int sample_count) const {
  return static_cast<double>(sample_count) * static_cast<double>(profile_.sequence_length) *
         static_cast<double>(profile_.hidden) * element_bytes();
}

GalvatronSeconds GalvatronForm::layer_seconds(const GalvatronStrategy& strategy, const GalvatronRun& run) const {
  const int b = samples(strategy, run), ranks = strategy.replicas();
  const double forward = layer_ms_.at(static_cast<double>(b) / strategy.split());
  const double backward = forward * (strategy.recompute ? 3 : 2);
  double gradient_mib = 2.0 * (ranks - 1) / ranks * profile_.parameter_mib / strategy.tensor;
  if (profile_.mixed_precision) gradient_mib /= 2;
  const double exchange = gradient_mib * ms_per_mib(ranks, strategy.tensor == 1);
  const double collectives = strategy.tensor > 1
                                 ? 6 * collective_ms(all_gather_, strategy.tensor, activation_bytes(b))
                                 : 4 * collective_ms(all_to_all_, strategy.sequence, activation_bytes(b));
  double common = forward + collectives * (strategy.recompute ? 1.5 : 1);
  if (strategy.states == GalvatronStates::zero3) common += 0.5 * exchange;
  if (strategy.stages > 1)  // the hops of all stages, spread over all layers
    common += strategy.stages * 2 * activation_bytes(b) / galvatron_mib /
              profile_.hop_gb_per_s.at(static_cast<std::size_t>(log2_of(strategy.stages) - 1)) /
              static_cast<double>(profile_.layers);
  // Replicas by sequence alone exchange gradients too; the form counts none without data parallelism.
  const double synchronised = strategy.data > 1 ? galvatron_overlap(backward, exchange, profile_.slowdown) : backward;
  return {1e-3 * (common + synchronised), 1e-3 * (common + backward)};
}

double GalvatronForm::layer_mib(const GalvatronStrategy& strategy, const GalvatronRun& run, int stage) const {
  const double states = 4 * profile_.parameter_mib / strategy.tensor *
                        galvatron_states_ratio(strategy.states, strategy.replicas(), run, profile_.mixed_precision);
  const double held = samples(strategy, run) * in_flight(run, strategy.stages, stage);
  const double activation = strategy.recompute ? profile_.recomputed_mib / strategy.split()
                                               : by_degree(profile_.activation_mib, strategy.split());
  return states + activation * held;
}

std::vector<GalvatronSeconds> GalvatronForm::ends_seconds(const GalvatronStrategy& strategy,
                                                          const GalvatronRun& run) const {
  const int b = samples(strategy, run), ranks = strategy.replicas();
  const double forward = ends_ms_.at(static_cast<double>(b) / strategy.split());
  const bool sharded = strategy.states == GalvatronStates::zero3;
  const double ms_per_state_mib = ms_per_mib(ranks, strategy.tensor == 1) * (ranks - 1) / ranks / 4;
  // Several messages of the same size: one for the embedding, one for the head.
  const double message_ms = strategy.tensor == 1
                                ? 0
                                : all_gather_[static_cast<std::size_t>(log2_of(strategy.tensor) - 1)].fit.at(
                                      activation_bytes(b) / galvatron_mib);
  const auto end = [&](const GalvatronEnds& states, double forward_ms, double collectives_ms) {
    const double exchange = by_degree(states.states_mib, strategy.tensor) * ms_per_state_mib;
    const double gather = sharded ? 0.5 * exchange : 0;
    const double before = hidden(gather, forward_ms, profile_.slowdown) + collectives_ms;
    return GalvatronSeconds{1e-3 * (before + hidden(gather + 0.5 * exchange, 2 * forward_ms, profile_.slowdown)),
                            1e-3 * (before + hidden(gather, 2 * forward_ms, profile_.slowdown))};
  };
  if (strategy.stages == 1) return {end(profile_.whole, forward, 2 * message_ms)};
  std::vector<GalvatronSeconds> stages(static_cast<std::size_t>(strategy.stages));
  stages.front() = end(profile_.first, forward / 2, message_ms);
  stages.back() = end(profile_.last, forward / 2, message_ms);
  return stages;
}

std::vector<double> GalvatronForm::ends_mib(const GalvatronStrategy& strategy, const GalvatronRun& run) const {
  const double ratio = galvatron_states_ratio(strategy.states, strategy.replicas(), run, profile_.mixed_precision);
  const auto end = [&](const GalvatronEnds& ends, int stage) {
    return by_degree(ends.states_mib, strategy.tensor) * ratio + by_degree(ends.activation_mib, strategy.split()) *
                                                                     samples(strategy, run) *
                                                                     in_flight(run, strategy.stages, stage);
  };
  std::vector<double> stages(static_cast<std::size_t>(strategy.stages), galvatron_context_mib);
  if (strategy.stages == 1) {
    stages[0] += end(profile_.whole, 0);
  } else {
    stages.front() += end(profile_.first, 0);
    stages.back() += end(profile_.last, strategy.stages - 1);
  }
  return stages;
}

double GalvatronForm::change_seconds(const GalvatronStrategy& from, const GalvatronStrategy& to,
                                     const GalvatronRun& run) const {
  if (from.split() == to.split()) return order_bias(from, to);
  const int degree = std::max(from.split(), to.split());
  const double replicas = static_cast<double>(profile_.devices) / to.stages / degree;
  const double sample_bytes = activation_bytes(1);
  return static_cast<double>(degree - 1) / degree * run.batch / run.micro_batches / replicas * sample_bytes *
         ms_per_mib(degree, true) * change_scale;
}

double GalvatronForm::buffer_mib(int stages, int largest_tensor, const GalvatronRun& run) const {
  const double replicas = static_cast<double>(profile_.devices) / stages / largest_tensor;
  return activation_bytes(1) * run.batch / run.micro_batches / replicas / galvatron_mib;
}

double galvatron_pipeline_seconds(const std::vector<double>& without_sync_s, const std::vector<double>& with_sync_s,
                                  int micro_batches) {
  const auto stages = static_cast<int>(without_sync_s.size());
  const double sum = std::accumulate(without_sync_s.begin(), without_sync_s.end(), 0.0);
  const double first = without_sync_s.front();
  const double drained = sum + (micro_batches - 1) * without_sync_s.back();
  const double filled = std::max(std::min(stages - 1, micro_batches - 1) * first, sum - first) +
                        first * std::max(0, micro_batches + 1 - stages);
  double reached = 0, exposed = 0;
  for (std::size_t i = 0; i < without_sync_s.size(); ++i) {
    reached += without_sync_s[i];
    exposed = std::max(exposed, with_sync_s[i] - reached);
  }
  return std::max(drained, filled) + exposed;
}

double pipeline_first_order_seconds(const std::vector<double>& stage_s, int micro_batches) {
  return std::accumulate(stage_s.begin(), stage_s.end(), 0.0) +
         (micro_batches - 1) * *std::max_element(stage_s.begin(), stage_s.end());
}

double pipeline_schedule_seconds(GalvatronSchedule schedule, const std::vector<double>& forward_s,
                                 const std::vector<double>& backward_s, int micro_batches) {
  const std::size_t stages = forward_s.size(), count = static_cast<std::size_t>(micro_batches);
  // Passes of a stage in its order: forward of micro-batch i is i, backward is count + i.
  std::vector<std::vector<std::size_t>> order(stages);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::size_t ahead = schedule == GalvatronSchedule::gpipe ? count : std::min(count, stages - stage);
    for (std::size_t i = 0; i < ahead; ++i) order[stage].push_back(i);
    for (std::size_t i = 0; i < count; ++i) {
      order[stage].push_back(count + i);
      if (ahead + i < count) order[stage].push_back(ahead + i);
    }
  }
  std::vector<std::vector<double>> ends(stages, std::vector<double>(2 * count, -1));
  std::vector<std::size_t> next(stages, 0);
  std::vector<double> free(stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < stages; ++stage) {
      for (; next[stage] < 2 * count; ++next[stage]) {
        const std::size_t pass = order[stage][next[stage]];
        const bool forward = pass < count;
        double ready = 0;  // when the neighbour has finished; negative: not yet
        if (forward && stage > 0) ready = ends[stage - 1][pass];
        if (!forward) ready = stage + 1 < stages ? ends[stage + 1][pass] : ends[stage][pass - count];
        if (ready < 0) break;
        free[stage] = std::max(free[stage], ready) + (forward ? forward_s : backward_s)[stage];
        ends[stage][pass] = free[stage];
        moved = true;
      }
    }
  }
  return *std::max_element(free.begin(), free.end());
}

}  // namespace motley
