#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"
#include "motley/planner/train/joint/candidate.hpp"

namespace motley {
namespace {

constexpr double start_temperature = 0.05;  // of the step's time; falls to nothing
constexpr std::int64_t most_sequences = 64;
constexpr double unlike_stages = 0.1;  // of the attempts to join over machines or types

// One random change of a candidate; unchanged where the dice meant something impossible.
class Mutation {
 public:
  Mutation(const TrainProblem& problem, RandomStream& dice) : problem_(problem), dice_(dice) {}

  TrainCandidate of(TrainCandidate candidate) {
    const double kind = dice_.uniform();
    if (kind < 0.25)
      move(candidate);
    else if (kind < 0.45)
      swap(candidate);
    else if (kind < 0.60)
      reorder(candidate);
    else if (kind < 0.70)
      split(candidate);
    else if (kind < 0.80)
      join(candidate);
    else if (kind < 0.86)
      divide(candidate);
    else if (kind < 0.91)
      merge(candidate);
    else if (kind < 0.96)
      idle(candidate);
    else
      candidate.sequences = dice_.uniform() < 0.5 ? std::max<std::int64_t>(1, candidate.sequences / 2)
                                                  : std::min(most_sequences, candidate.sequences * 2);
    std::erase_if(candidate.replicas, [](const PipelineGroups& replica) { return replica.empty(); });
    return candidate;
  }

 private:
  std::size_t any(const TrainCandidate& candidate) { return dice_.below(candidate.replicas.size()); }

  void move(TrainCandidate& candidate) {
    PipelineGroups& from = candidate.replicas[any(candidate)];
    PipelineGroups& to = candidate.replicas[any(candidate)];
    if (&from == &to) return;
    const std::size_t i = dice_.below(from.size());
    to.insert(to.begin() + static_cast<std::ptrdiff_t>(dice_.below(to.size() + 1)), std::move(from[i]));
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void swap(TrainCandidate& candidate) {
    PipelineGroups& a = candidate.replicas[any(candidate)];
    PipelineGroups& b = candidate.replicas[any(candidate)];
    std::swap(a[dice_.below(a.size())], b[dice_.below(b.size())]);
  }
  // A part of a pipeline the other way round, or somewhere else.
  void reorder(TrainCandidate& candidate) {
    PipelineGroups& replica = candidate.replicas[any(candidate)];
    std::size_t a = dice_.below(replica.size()), b = dice_.below(replica.size());
    if (a > b) std::swap(a, b);
    const auto at = [&](std::size_t i) { return replica.begin() + static_cast<std::ptrdiff_t>(i); };
    if (dice_.uniform() < 0.5)
      std::reverse(at(a), at(b + 1));
    else
      std::rotate(at(a), at(a + 1), at(b + 1));
  }
  void split(TrainCandidate& candidate) {
    PipelineGroups& replica = candidate.replicas[any(candidate)];
    const std::size_t i = dice_.below(replica.size());
    const std::vector<int> whole = replica[i];
    if (whole.size() < 2) return;
    const auto middle = whole.begin() + std::ssize(whole) / 2;
    replica[i] = {whole.begin(), middle};
    replica.insert(replica.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::vector<int>(middle, whole.end()));
  }
  // Two neighbouring stages become one: mostly of like devices in one machine.
  void join(TrainCandidate& candidate) {
    PipelineGroups& replica = candidate.replicas[any(candidate)];
    if (replica.size() < 2) return;
    const std::size_t i = dice_.below(replica.size() - 1);
    const auto& devices = problem_.cluster.devices;
    const Device& a = devices[static_cast<std::size_t>(replica[i].front())];
    const Device& b = devices[static_cast<std::size_t>(replica[i + 1].front())];
    if ((a.machine != b.machine || a.type != b.type) && dice_.uniform() > unlike_stages) return;
    replica[i].insert(replica[i].end(), replica[i + 1].begin(), replica[i + 1].end());
    std::sort(replica[i].begin(), replica[i].end());
    replica.erase(replica.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  void divide(TrainCandidate& candidate) {
    PipelineGroups& replica = candidate.replicas[any(candidate)];
    if (replica.size() < 2) return;
    const auto middle = replica.begin() + static_cast<std::ptrdiff_t>(1 + dice_.below(replica.size() - 1));
    PipelineGroups tail(middle, replica.end());
    replica.erase(middle, replica.end());
    candidate.replicas.push_back(std::move(tail));
  }
  void merge(TrainCandidate& candidate) {
    const std::size_t a = any(candidate), b = any(candidate);
    if (a == b) return;
    PipelineGroups& from = candidate.replicas[b];
    candidate.replicas[a].insert(candidate.replicas[a].end(), from.begin(), from.end());
    from.clear();
  }
  // A stage's devices rest; or some that rest form a stage.
  void idle(TrainCandidate& candidate) {
    std::vector<bool> busy(problem_.cluster.devices.size(), false);
    for (const auto& replica : candidate.replicas)
      for (const auto& group : replica)
        for (const int device : group) busy[static_cast<std::size_t>(device)] = true;
    std::vector<int> resting;
    for (std::size_t device = 0; device < busy.size(); ++device)
      if (!busy[device]) resting.push_back(static_cast<int>(device));
    PipelineGroups& replica = candidate.replicas[any(candidate)];
    if (resting.empty() || dice_.uniform() < 0.5) {
      if (replica.size() > 1) replica.erase(replica.begin() + static_cast<std::ptrdiff_t>(dice_.below(replica.size())));
      return;
    }
    const auto& devices = problem_.cluster.devices;
    const Device& like = devices[static_cast<std::size_t>(resting[dice_.below(resting.size())])];
    std::vector<int> group;
    for (const int device : resting)
      if (devices[static_cast<std::size_t>(device)].machine == like.machine &&
          devices[static_cast<std::size_t>(device)].type == like.type)
        group.push_back(device);
    std::size_t size = 1;
    while (2 * size <= group.size() && dice_.uniform() < 0.7) size *= 2;
    group.resize(size);
    replica.insert(replica.begin() + static_cast<std::ptrdiff_t>(dice_.below(replica.size() + 1)), std::move(group));
  }

  const TrainProblem& problem_;
  RandomStream& dice_;
};

}  // namespace

TrainCandidate improved(Judge& judge, const TrainCandidate& start, std::uint64_t seed, std::uint64_t stream,
                        std::int64_t moves, Instant deadline, std::int64_t& evaluated) {
  RandomStream dice(seed, stream);
  TrainCandidate best = start, current = start;
  double current_s = judge.quick(start).iteration_s, best_s = current_s;
  for (std::int64_t i = 0; i < moves && Clock::now() < deadline; ++i) {
    const double left = 1 - static_cast<double>(i) / static_cast<double>(moves);
    const double tolerated_s = -start_temperature * left * left * current_s * std::log(std::max(dice.uniform(), 1e-12));
    TrainCandidate next = Mutation(judge.problem(), dice).of(current);
    const double next_s = judge.quick(next, current_s + tolerated_s).iteration_s;
    ++evaluated;
    if (!(next_s <= current_s + tolerated_s)) continue;
    current = std::move(next);
    current_s = next_s;
    if (current_s < best_s) {
      best = current;
      best_s = current_s;
    }
  }
  return best;
}

}  // namespace motley
