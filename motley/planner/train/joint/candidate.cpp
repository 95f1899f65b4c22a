#include "motley/planner/train/joint/candidate.hpp"

#include <algorithm>
#include <limits>

#include "motley/base/rounding.hpp"

namespace motley {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// How many layers a stage takes within a bound; `seconds` rises with them.
std::int64_t most_within(const std::vector<double>& seconds, double bound) {
  return std::upper_bound(seconds.begin() + 1, seconds.end(), bound) - seconds.begin() - 1;
}

StagePlace place_of(const TrainProblem& problem, std::size_t stage, std::size_t stages, std::int64_t sequences,
                    std::int64_t micro_batches) {
  // No replica runs more micro-batches than the whole batch has.
  const std::int64_t most = ceil_div(problem.training.global_batch, sequences);
  return {.ends = {stage == 0, stage + 1 == stages},
          .sequences = sequences,
          .in_flight = micro_batches_in_flight(problem.schedule, stage, stages, most),
          .waiting = micro_batches_waiting(problem.schedule, stage, stages, most),
          .micro_batches = micro_batches};
}

}  // namespace

namespace {

// Of alike layers; `seconds` by their number.
std::vector<std::int64_t> divide_alike(std::int64_t layers, const std::vector<std::vector<double>>& seconds) {
  const std::size_t stages = seconds.size();
  if (static_cast<std::int64_t>(stages) > layers) return {};
  // The least bound under which all layers find a place: one of the stages' own times.
  std::vector<double> bounds;
  for (const auto& of_stage : seconds)
    for (std::int64_t n = 1; n <= layers && of_stage[static_cast<std::size_t>(n)] < never; ++n)
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

  // Each stage one layer; then the one that takes the next one quickest, within the bound.
  std::vector<std::int64_t> counts(stages, 1);
  const auto next_s = [&](std::size_t s) {
    const auto n = static_cast<std::size_t>(counts[s]);
    const double then = n + 1 < seconds[s].size() ? seconds[s][n + 1] : never;
    return then <= *least ? then - seconds[s][n] : never;
  };
  for (auto left = layers - static_cast<std::int64_t>(stages); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t s = 1; s < stages; ++s)
      if (next_s(s) < next_s(best)) best = s;
    ++counts[best];
  }
  return counts;
}

// Of unlike layers, stage by stage: the least of `combined(so far, of the stage)` over all borders.
template <class SecondsOf, class Combine>
std::vector<std::int64_t> divide_unlike(std::int64_t layers, std::size_t stages, const SecondsOf& seconds_of,
                                        const Combine& combined) {
  const auto width = static_cast<std::size_t>(layers) + 1;
  std::vector<double> best(width, never);  // of the stages so far, by where they end
  best[0] = 0;
  std::vector<std::vector<std::int64_t>> counts(stages, std::vector<std::int64_t>(width, 0));
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<double> next(width, never);
    for (std::int64_t end = s + 1 == stages ? layers : 1; end <= layers; ++end)
      for (std::int64_t first = s == 0 ? 0 : end - 1; first >= 0; --first) {
        const std::int64_t count = end - first;
        const double seconds = combined(best[static_cast<std::size_t>(first)], seconds_of(s, first, count));
        if (seconds >= next[static_cast<std::size_t>(end)]) continue;
        next[static_cast<std::size_t>(end)] = seconds;
        counts[s][static_cast<std::size_t>(end)] = count;
      }
    best = std::move(next);
  }
  if (best.back() == never) return {};
  std::vector<std::int64_t> division(stages);
  for (std::int64_t end = layers, s = std::ssize(division); s-- > 0; end -= division[static_cast<std::size_t>(s)])
    division[static_cast<std::size_t>(s)] = counts[static_cast<std::size_t>(s)][static_cast<std::size_t>(end)];
  return division;
}

}  // namespace

std::vector<std::int64_t> divide_layers(const LayerLine& line, const std::vector<const StrategyTable*>& stages) {
  const std::int64_t layers = line.layers();
  if (line.kinds() == 1) {
    std::vector<std::vector<double>> seconds;
    for (const StrategyTable* table : stages) {
      std::vector<double>& own = seconds.emplace_back(static_cast<std::size_t>(layers) + 1, 0.0);
      for (std::int64_t n = 1; n <= layers; ++n) own[static_cast<std::size_t>(n)] = table->seconds(0, n);
    }
    return divide_alike(layers, seconds);
  }
  const auto seconds_of = [&](std::size_t s, std::int64_t first, std::int64_t count) {
    return stages[s]->seconds(first, count);
  };
  const auto slowest = [](double a, double b) { return std::max(a, b); };
  const std::vector<std::int64_t> even = divide_unlike(layers, stages.size(), seconds_of, slowest);
  double least = 0;
  for (std::size_t s = 0, first = 0; s < even.size(); first += static_cast<std::size_t>(even[s++]))
    least = std::max(least, seconds_of(s, static_cast<std::int64_t>(first), even[s]));
  return divide_unlike(layers, stages.size(), seconds_of,
                       [&](double sum, double own) { return own > least ? never : sum + own; });
}

SolvedReplica solve_replica(const TrainProblem& problem, StrategyTables& tables, const PipelineGroups& groups,
                            std::int64_t sequences, std::int64_t micro_batches) {
  std::vector<const StrategyTable*> of_stages;
  for (std::size_t s = 0; s < groups.size(); ++s) {
    const StrategyTable& table = tables.table(groups[s], place_of(problem, s, groups.size(), sequences, micro_batches));
    if (table.most_layers() < 1) return {};
    of_stages.push_back(&table);
  }
  const std::vector<std::int64_t> counts = divide_layers(tables.line(), of_stages);
  if (counts.empty()) return {};
  SolvedReplica solved;
  std::int64_t first = 0;
  double slowest_s = 0;
  std::vector<double> seconds;  // of every stage
  for (std::size_t s = 0; s < groups.size(); ++s) {
    solved.stages.push_back(of_stages[s]->choice(first, counts[s]));
    seconds.push_back(of_stages[s]->seconds(first, counts[s]));
    first += counts[s];
    slowest_s = std::max(slowest_s, seconds.back());
  }
  std::vector<double> hops_s;  // both ways, to the next stage
  for (std::size_t s = 0; s + 1 < groups.size(); ++s) {
    const PipelineHop hop = problem.cost.hop(groups[s], groups[s + 1], sequences);
    hops_s.push_back(2 * (hop.busy_s + hop.latency_s));
    slowest_s = std::max(slowest_s, hop.busy_s);
  }
  double all_s = 0, longest_s = slowest_s * static_cast<double>(micro_batches - 1);
  std::int64_t window = 1;
  for (std::size_t from = 0; from < groups.size(); ++from) {
    // 1F1B: from its forward pass on, a micro-batch goes on to a later stage, and what that stage sends back lets this
    // one begin as many micro-batches later as there are stages on the way.
    double way_s = 0;
    for (std::size_t to = from; to < groups.size(); ++to) {
      way_s += seconds[to] + (to > from ? hops_s[to - 1] : 0);
      const auto stages = static_cast<std::int64_t>(to - from + 1);
      const double each_s = way_s / static_cast<double>(stages);
      const double then_s = each_s * static_cast<double>(micro_batches - stages);
      if (problem.schedule != PipelineSchedule::one_forward_one_backward || then_s <= longest_s) continue;
      longest_s = then_s;
      slowest_s = each_s;
      window = stages;
    }
    if (from == 0) all_s = way_s;
  }
  solved.pace = {.rest_s = std::max(0.0, all_s - static_cast<double>(window) * slowest_s), .each_s = slowest_s};
  return solved;
}

TrainLayout write_layout(const TrainProblem& problem, const std::vector<PipelineGroups>& replicas,
                         const std::vector<const SolvedReplica*>& solved,
                         const std::vector<std::int64_t>& micro_batches, std::int64_t sequences) {
  TrainLayout layout{.replicas = {}, .schedule = problem.schedule, .sync = {.overlap = true}};
  std::int64_t left = problem.training.global_batch;
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    // What does not fill the last micro-batches is missing from the last replica's.
    const std::int64_t own = std::min(left, micro_batches[r] * sequences);
    if (own == 0) continue;
    left -= own;
    ReplicaLayout& replica =
        layout.replicas.emplace_back(ReplicaLayout{.sequences = own, .micro_batches = micro_batches[r], .stages = {}});
    for (std::size_t s = 0; s < replicas[r].size(); ++s) {
      const StageChoice& choice = solved[r]->stages[s];
      replica.stages.push_back({.layers = {choice.strategies.front().layers.first, choice.strategies.back().layers.end},
                                .devices = replicas[r][s],
                                .shares = choice.shares,
                                .strategies = choice.strategies});
    }
  }
  return layout;
}

namespace {

// Micro-batches that a replica is expected to run; powers of two, so that tables are shared.
std::int64_t expected_micro_batches(const TrainProblem& problem, std::size_t replicas, std::int64_t sequences) {
  const double each = static_cast<double>(problem.training.global_batch) /
                      static_cast<double>(static_cast<std::int64_t>(replicas) * sequences);
  std::int64_t power = 1;
  while (2 * power <= static_cast<std::int64_t>(each)) power *= 2;
  return power;
}

}  // namespace

const SolvedReplica& Judge::solved(const PipelineGroups& groups, std::int64_t sequences, std::int64_t micro_batches) {
  // Replicas of the same types and links, in the same order, are solved once.
  std::vector<double> look = {static_cast<double>(sequences), static_cast<double>(micro_batches)};
  const TrainLinks& links = problem_.cost.links();
  for (std::size_t s = 0; s < groups.size(); ++s) {
    const std::vector<int>& group = groups[s];
    look.push_back(-static_cast<double>(group.size()));
    for (const int device : group) {
      look.push_back(problem_.cluster.devices[static_cast<std::size_t>(device)].type);
      // Of a group in one machine the first link tells all; others are told apart by where they are.
      if (links.machine_of(device) != links.machine_of(group.front())) look.push_back(1e6 + device);
    }
    if (group.size() > 1) {
      const PathSpeed path = links.path(group[0], group[1]);
      look.insert(look.end(), {path.latency_s, path.bandwidth_bytes_per_s});
    }
    if (s > 0) {
      const PipelineHop hop = problem_.cost.hop(groups[s - 1], group, sequences);
      look.insert(look.end(), {hop.latency_s, hop.busy_s});
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = solved_.find(look); found != solved_.end()) return *found->second;
  }
  auto solved = std::make_unique<SolvedReplica>(solve_replica(problem_, tables_, groups, sequences, micro_batches));
  const std::lock_guard lock(mutex_);
  return *solved_.try_emplace(std::move(look), std::move(solved)).first->second;
}

Judged Judge::laid_out(const TrainCandidate& candidate, double limit_s) {
  const std::int64_t expected = expected_micro_batches(problem_, candidate.replicas.size(), candidate.sequences);
  std::vector<const SolvedReplica*> solved_replicas;
  std::vector<ReplicaPace> paces;
  for (const auto& groups : candidate.replicas) {
    solved_replicas.push_back(&solved(groups, candidate.sequences, expected));
    paces.push_back(solved_replicas.back()->pace);
  }
  const std::int64_t total = ceil_div(problem_.training.global_batch, candidate.sequences);
  const std::vector<std::int64_t> counts = apportion(paces, total, 0);
  Judged judged;
  double slowest_s = 0;
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] > 0) slowest_s = std::max(slowest_s, paces[r].end_s(counts[r]));
  if (slowest_s == 0 || slowest_s > limit_s) return judged;
  judged.layout = write_layout(problem_, candidate.replicas, solved_replicas, counts, candidate.sequences);
  judged.iteration_s = slowest_s;
  return judged;
}

Judged Judge::quick(const TrainCandidate& candidate, double limit_s) {
  Judged judged = laid_out(candidate, limit_s);
  if (!judged.fits()) return judged;
  const GradientExchange exchange = gradient_exchange(problem_.cost, problem_.view(), judged.layout);
  judged.iteration_s += exchange.seconds + exchange.gather_s;
  return judged;
}

Judged Judge::exact(const TrainCandidate& candidate) {
  Judged judged = laid_out(candidate, std::numeric_limits<double>::infinity());
  if (judged.fits()) judged.iteration_s = price_step(problem_.cost, problem_.view(), judged.layout).iteration_s;
  return judged;
}

}  // namespace motley
