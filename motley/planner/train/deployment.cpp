#include "motley/planner/train/deployment.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
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

SolvedReplica Judge::solved(const PipelineGroups& groups, std::int64_t sequences, std::int64_t micro_batches) {
  // Replicas of the same types and links, in the same order, are solved once.
  const Cluster& cluster = problem_.cluster;
  std::vector<double> look = {static_cast<double>(sequences), static_cast<double>(micro_batches)};
  const auto add_link = [&](int a, int b) {
    const PathSpeed path = cluster.link(a, b);
    look.insert(look.end(), {path.latency_s, path.bandwidth_bytes_per_s});
  };
  for (std::size_t s = 0; s < groups.size(); ++s) {
    look.push_back(-static_cast<double>(groups[s].size()));
    for (std::size_t i = 0; i < groups[s].size(); ++i) {
      look.push_back(cluster.devices[static_cast<std::size_t>(groups[s][i])].type);
      if (i > 0) add_link(groups[s][i - 1], groups[s][i]);
    }
    if (s > 0)
      for (const int a : groups[s - 1])
        for (const int b : groups[s]) add_link(a, b);
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = solved_.find(look); found != solved_.end()) return found->second;
  }
  SolvedReplica solved = solve_replica(problem_, tables_, groups, sequences, micro_batches);
  const std::lock_guard lock(mutex_);
  return solved_.emplace(std::move(look), std::move(solved)).first->second;
}

Judged Judge::quick(const Deployment& deployment) {
  const std::int64_t expected = expected_micro_batches(problem_, deployment.replicas.size(), deployment.sequences);
  std::vector<SolvedReplica> solved_replicas;
  for (const auto& groups : deployment.replicas)
    solved_replicas.push_back(solved(groups, deployment.sequences, expected));
  const std::int64_t total = (problem_.training.global_batch + deployment.sequences - 1) / deployment.sequences;
  const std::vector<std::int64_t> counts = apportion(solved_replicas, total);
  Judged judged;
  double slowest_s = 0;
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] > 0)
      slowest_s = std::max(
          slowest_s, solved_replicas[r].fill_s + static_cast<double>(counts[r]) * solved_replicas[r].micro_batch_s);
  if (slowest_s == 0) return judged;
  judged.layout =
      write_layout(problem_, tables_, deployment.replicas, solved_replicas, counts, deployment.sequences, expected);
  const GradientExchange exchange = gradient_exchange(problem_.cost, problem_.view(), judged.layout);
  judged.iteration_s = slowest_s + exchange.seconds;
  return judged;
}

Judged Judge::exact(const Deployment& deployment) {
  Judged judged = quick(deployment);
  if (judged.fits()) judged.iteration_s = price_step(problem_.cost, problem_.view(), judged.layout).iteration_s;
  return judged;
}

}  // namespace motley
