#include "motley/planner/train/replicas.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace motley {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// How many layers a stage takes within a bound; `seconds` rises with them.
std::int64_t most_within(const std::vector<double>& seconds, double bound) {
  return std::upper_bound(seconds.begin() + 1, seconds.end(), bound) - seconds.begin() - 1;
}

StagePlace place_of(const TrainProblem& problem, std::size_t stage, std::size_t stages, std::int64_t sequences,
                    std::int64_t micro_batches) {
  return {.ends = {stage == 0, stage + 1 == stages},
          .sequences = sequences,
          // No replica runs more micro-batches than the whole batch has.
          .in_flight = micro_batches_in_flight(problem.schedule, stage, stages,
                                               (problem.training.global_batch + sequences - 1) / sequences),
          .micro_batches = micro_batches};
}

}  // namespace

std::vector<std::int64_t> divide_layers(std::int64_t layers, const std::vector<std::vector<double>>& seconds) {
  const std::size_t stages = seconds.size();
  if (static_cast<std::int64_t>(stages) > layers) return {};
  // The least bound under which all layers find a place: one of the stages' own times.
  std::vector<double> bounds;
  for (const auto& of_stage : seconds)
    for (std::int64_t n = 1; n <= layers && of_stage[static_cast<std::size_t>(n)] < kNever; ++n)
      bounds.push_back(of_stage[static_cast<std::size_t>(n)]);
  std::sort(bounds.begin(), bounds.end());
  const auto fits = [&](double bound) {
    std::int64_t room = 0;
    for (const auto& of_stage : seconds) {
      const std::int64_t most = most_within(of_stage, bound);
      if (most < 1) return false;
      room += most;
    }
    return room >= layers;
  };
  const auto least = std::partition_point(bounds.begin(), bounds.end(), [&](double bound) { return !fits(bound); });
  if (least == bounds.end()) return {};

  // Each stage one layer; then whoever takes the next one quickest, within the bound.
  std::vector<std::int64_t> counts(stages, 1);
  const auto next_s = [&](std::size_t s) {
    const auto n = static_cast<std::size_t>(counts[s]);
    const double then = n + 1 < seconds[s].size() ? seconds[s][n + 1] : kNever;
    return then <= *least ? then - seconds[s][n] : kNever;
  };
  for (auto left = layers - static_cast<std::int64_t>(stages); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t s = 1; s < stages; ++s)
      if (next_s(s) < next_s(best)) best = s;
    ++counts[best];
  }
  return counts;
}

SolvedReplica solve_replica(const TrainProblem& problem, StrategyTables& tables, const PipelineGroups& groups,
                            std::int64_t sequences, std::int64_t micro_batches) {
  const std::int64_t layers = problem.model.arch.layers;
  std::vector<std::vector<double>> seconds;
  for (std::size_t s = 0; s < groups.size(); ++s) {
    const StrategyTable& table = tables.table(groups[s], place_of(problem, s, groups.size(), sequences, micro_batches));
    if (table.most_layers() < 1) return {};
    std::vector<double>& own = seconds.emplace_back(static_cast<std::size_t>(layers) + 1, 0.0);
    for (std::int64_t n = 1; n <= layers; ++n) own[static_cast<std::size_t>(n)] = table.seconds(n);
  }
  SolvedReplica solved{.layers = divide_layers(layers, seconds)};
  if (!solved.fits()) return {};
  double sum = 0;
  for (std::size_t s = 0; s < groups.size(); ++s) {
    const double own_s = seconds[s][static_cast<std::size_t>(solved.layers[s])];
    sum += own_s;
    solved.micro_batch_s = std::max(solved.micro_batch_s, own_s);
    if (s + 1 < groups.size()) {
      // Both ways; a link that is slower than every stage sets the pace.
      const PipelineHop hop = problem.cost.hop(groups[s], groups[s + 1], sequences);
      sum += 2 * (hop.busy_s + hop.latency_s);
      solved.micro_batch_s = std::max(solved.micro_batch_s, hop.busy_s);
    }
  }
  solved.fill_s = sum - solved.micro_batch_s;
  return solved;
}

std::vector<std::int64_t> apportion(const std::vector<SolvedReplica>& replicas, std::int64_t total) {
  const auto within = [&](const SolvedReplica& replica, double bound) {
    if (!replica.fits() || bound < replica.fill_s + replica.micro_batch_s) return std::int64_t{0};
    const double most = (bound - replica.fill_s) / replica.micro_batch_s * (1 + 1e-12);
    return std::min(total, static_cast<std::int64_t>(most));
  };
  const auto room = [&](double bound) {
    std::int64_t sum = 0;
    for (const auto& replica : replicas) sum += within(replica, bound);
    return sum;
  };
  double high = 0;
  for (const auto& replica : replicas)
    if (replica.fits())
      high = std::max(high, replica.fill_s + static_cast<double>(total) * replica.micro_batch_s * (1 + 1e-9));
  std::vector<std::int64_t> counts(replicas.size(), 0);
  if (room(high) < total) return counts;
  double low = 0;
  for (int i = 0; i < 100 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (room(middle) >= total ? high : low) = middle;
  }
  std::int64_t left = total;
  for (std::size_t r = 0; r < replicas.size(); ++r) left -= counts[r] = within(replicas[r], high);
  // The bound may have room for more than there is: whoever would end last gives it back.
  while (left < 0) {
    std::size_t last = replicas.size();
    double latest = -1;
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      const double end = replicas[r].fill_s + static_cast<double>(counts[r]) * replicas[r].micro_batch_s;
      if (counts[r] > 0 && end > latest) {
        latest = end;
        last = r;
      }
    }
    --counts[last];
    ++left;
  }
  return counts;
}

TrainLayout write_layout(const TrainProblem& problem, StrategyTables& tables,
                         const std::vector<PipelineGroups>& replicas, const std::vector<SolvedReplica>& solved,
                         const std::vector<std::int64_t>& micro_batches, std::int64_t sequences,
                         std::int64_t expected_micro_batches) {
  TrainLayout layout{.replicas = {}, .schedule = problem.schedule, .sync = {.overlap = true}};
  std::int64_t left = problem.training.global_batch;
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    if (micro_batches[r] == 0) continue;
    // What does not fill the last micro-batches is missing from this replica's.
    const std::int64_t own = std::min(left, micro_batches[r] * sequences);
    left -= own;
    ReplicaLayout replica{.sequences = own, .micro_batches = micro_batches[r], .stages = {}};
    std::int64_t first = 0;
    for (std::size_t s = 0; s < replicas[r].size(); ++s) {
      const StrategyTable& table =
          tables.table(replicas[r][s], place_of(problem, s, replicas[r].size(), sequences, expected_micro_batches));
      const std::int64_t count = solved[r].layers[s];
      replica.stages.push_back({.layers = {first, first + count},
                                .devices = replicas[r][s],
                                .shares = {},
                                .strategies = table.strategies(first, count)});
      first += count;
    }
    if (own > 0) layout.replicas.push_back(std::move(replica));
  }
  return layout;
}

}  // namespace motley
