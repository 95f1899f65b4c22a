// A candidate of the training planner: which devices form which stage of which replica, and how it is judged.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/planner/train/joint/replicas.hpp"

namespace motley {

// Devices in none of the groups are idle.
struct TrainCandidate {
  std::vector<PipelineGroups> replicas;
  std::int64_t sequences = 1;  // of a micro-batch
};

struct Judged {
  double iteration_s = std::numeric_limits<double>::infinity();
  TrainLayout layout;  // empty: does not fit
  bool fits() const { return !layout.replicas.empty(); }
};

class Judge {
 public:
  explicit Judge(const TrainProblem& problem) : problem_(problem), tables_(problem) {}

  // By closed form: a replica's slowest stage sets its pace, and what replicas exchange is added. Where that is surely
  // above `limit_s`, it is infinite.
  Judged quick(const TrainCandidate& candidate, double limit_s = std::numeric_limits<double>::infinity());
  // Event by event.
  Judged exact(const TrainCandidate& candidate);

  const TrainProblem& problem() const { return problem_; }

 private:
  const TrainProblem& problem_;
  StrategyTables tables_;
  std::mutex mutex_;
  std::map<std::vector<double>, std::unique_ptr<SolvedReplica>> solved_;

  // The layout, and how long its slowest pipeline takes: nothing about what replicas exchange.
  Judged laid_out(const TrainCandidate& candidate, double limit_s);
  const SolvedReplica& solved(const PipelineGroups& groups, std::int64_t sequences, std::int64_t micro_batches);
};

// Every division of so few devices; otherwise those that a person would try: groups of 1, 2, 4, ... like devices of a
// machine or of several, dealt out to 1, 2, ... replicas by site, by machine, or so that all replicas are alike; and
// stages of whole sites.
inline constexpr std::size_t few_devices = 5;
std::vector<TrainCandidate> structured_candidates(const TrainProblem& problem);

// Local moves from a start, accepted as simulated annealing does; never worse than its start.
TrainCandidate improved(Judge& judge, const TrainCandidate& start, std::uint64_t seed, std::uint64_t stream,
                        std::int64_t moves, Instant deadline, std::int64_t& evaluated);

}  // namespace motley
