// A candidate of the training planner: which devices form which stage of which replica, and how it is judged.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/planner/train/joint/strategy_tables.hpp"
#include "motley/planner/train/plan/apportion.hpp"

namespace motley {

// Stages first to last, each the devices of one group.
using PipelineGroups = std::vector<std::vector<int>>;

// Layers for every stage, so that the slowest is as quick as possible, and of those divisions one whose stages together
// are quick. Empty where the layers fit nowhere.
std::vector<std::int64_t> divide_layers(const LayerLine& line, const std::vector<const StrategyTable*>& stages);

// A replica with its layers divided, before it is known how many micro-batches it gets.
struct SolvedReplica {
  std::vector<StageChoice> stages;  // first to last; none: the model does not fit
  ReplicaPace pace = {.each_s = std::numeric_limits<double>::infinity()};  // at the slowest stage, after filling
  bool fits() const { return !stages.empty(); }
};

// `sequences`: of a micro-batch; `micro_batches`: about how many there will be.
SolvedReplica solve_replica(const TrainProblem& problem, StrategyTables& tables, const PipelineGroups& groups,
                            std::int64_t sequences, std::int64_t micro_batches);

// The layout of replicas with these micro-batches; sequences are dealt out so that all of the batch is.
TrainLayout write_layout(const TrainProblem& problem, const std::vector<PipelineGroups>& replicas,
                         const std::vector<const SolvedReplica*>& solved,
                         const std::vector<std::int64_t>& micro_batches, std::int64_t sequences);

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
