// How long a group of devices takes for 1, 2, ... layers, under the best mix of two strategies that its memory holds.
// Groups that look alike are computed once. One stage's best mix of all strategies: the strategy-chain kernel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "motley/cost/train_price.hpp"

namespace motley {

struct TrainProblem {
  const Cluster& cluster;
  const Model& model;
  const Training& training;
  const Profile& profile;
  const TrainStepCost& cost;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  TrainProblemView view() const { return {cluster, model.arch, training, profile}; }
};

// Everything that a group of so many devices can do with a layer, its range left open.
std::vector<LayerStrategy> stage_strategies(const Architecture& arch, std::int64_t devices, std::int64_t sequences);

// What a stage is asked beside its layers.
struct StagePlace {
  StageEnds ends;
  std::int64_t sequences = 1;      // of a micro-batch
  std::int64_t in_flight = 1;      // micro-batches held at once
  std::int64_t micro_batches = 1;  // per step, over which what happens once per step is spread
  auto operator<=>(const StagePlace& o) const {
    return std::tuple(ends.first, ends.last, sequences, in_flight, micro_batches) <=>
           std::tuple(o.ends.first, o.ends.last, o.sequences, o.in_flight, o.micro_batches);
  }
  bool operator==(const StagePlace& o) const { return (*this <=> o) == 0; }
};

class StrategyTable {
 public:
  StrategyTable(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place);

  // Seconds per micro-batch of a stage of so many layers, forward and backward, with its ends and its share of what
  // happens once per step; infinite where they do not fit. From 1 to the model's layers.
  double seconds(std::int64_t layers) const { return seconds_[static_cast<std::size_t>(layers)]; }
  std::int64_t most_layers() const { return most_layers_; }
  // The strategies of a stage that begins with layer `first`: ranges of the same strategy, together all layers.
  std::vector<LayerStrategy> strategies(std::int64_t first, std::int64_t layers) const;

 private:
  struct Mix {
    LayerStrategy at_end, other;
    std::int64_t count = 0;  // of the first
  };
  bool reversed_ = false;  // the stage's end is the head
  std::vector<Mix> mixes_;
  std::vector<double> seconds_;
  std::int64_t most_layers_ = 0;
};

// Of all mixes, also of several degrees, the quickest that fits, by the chain kernel. Empty: none fits.
std::vector<LayerStrategy> best_strategies(const TrainProblem& problem, const std::vector<int>& devices,
                                           const StagePlace& place, LayerRange layers);

class StrategyTables {
 public:
  explicit StrategyTables(const TrainProblem& problem) : problem_(problem) {}
  // Devices of one type in one machine, or any others.
  const StrategyTable& table(const std::vector<int>& devices, const StagePlace& where);

 private:
  using Look = std::vector<double>;  // types and links
  const TrainProblem& problem_;
  std::mutex mutex_;
  std::map<std::pair<Look, StagePlace>, std::unique_ptr<StrategyTable>> tables_;
};

}  // namespace motley
