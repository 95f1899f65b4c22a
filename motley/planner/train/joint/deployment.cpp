#include "motley/planner/train/joint/deployment.hpp"

#include <algorithm>

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

Judged Judge::laid_out(const Deployment& deployment, double limit_s) {
  const std::int64_t expected = expected_micro_batches(problem_, deployment.replicas.size(), deployment.sequences);
  std::vector<const SolvedReplica*> solved_replicas;
  std::vector<ReplicaPace> paces;
  for (const auto& groups : deployment.replicas) {
    solved_replicas.push_back(&solved(groups, deployment.sequences, expected));
    paces.push_back(solved_replicas.back()->pace);
  }
  const std::int64_t total = (problem_.training.global_batch + deployment.sequences - 1) / deployment.sequences;
  const std::vector<std::int64_t> counts = apportion(paces, total, 0);
  Judged judged;
  double slowest_s = 0;
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] > 0) slowest_s = std::max(slowest_s, paces[r].end_s(counts[r]));
  if (slowest_s == 0 || slowest_s > limit_s) return judged;
  judged.layout = write_layout(problem_, deployment.replicas, solved_replicas, counts, deployment.sequences);
  judged.iteration_s = slowest_s;
  return judged;
}

Judged Judge::quick(const Deployment& deployment, double limit_s) {
  Judged judged = laid_out(deployment, limit_s);
  if (!judged.fits()) return judged;
  const GradientExchange exchange = gradient_exchange(problem_.cost, problem_.view(), judged.layout);
  judged.iteration_s += exchange.seconds + exchange.gather_s;
  return judged;
}

Judged Judge::exact(const Deployment& deployment) {
  Judged judged = laid_out(deployment, std::numeric_limits<double>::infinity());
  if (judged.fits()) judged.iteration_s = price_step(problem_.cost, problem_.view(), judged.layout).iteration_s;
  return judged;
}

}  // namespace motley
