// How long a group of devices takes for a range of layers, under the best mix of two strategies that its memory holds.
// Groups that look alike are computed once. One stage's best mix of all strategies: the strategy-chain kernel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "motley/cost/train/train_price.hpp"

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

// Everything that a group of devices can do with a layer of micro-batches of this many sequences, its range left open.
// Devices of unlike types are all tensor or all data parallel.
std::vector<LayerStrategy> stage_strategies(const TrainProblem& problem, const std::vector<int>& devices,
                                            std::int64_t sequences);
// What each of them takes of the work then: nothing is said where they are alike; otherwise in proportion to their
// speed, in whole sequences where they are data parallel.
std::vector<double> work_shares(const TrainProblem& problem, const std::vector<int>& devices,
                                const LayerStrategy& strategy, std::int64_t sequences);
// That a device computes alone, there and back, of one sequence.
double blocks_per_s(const TrainProblem& problem, int device);

// A stage's strategies, and the shares that go with them.
struct StageChoice {
  std::vector<LayerStrategy> strategies;  // empty: none fits
  std::vector<double> shares;
};

// What a stage is asked in addition to its layers.
struct StagePlace {
  StageEnds ends;
  std::int64_t sequences = 1;      // of a micro-batch
  std::int64_t in_flight = 1;      // micro-batches held at once
  std::int64_t waiting = 0;        // and in addition those whose gradients of weights wait
  std::int64_t micro_batches = 1;  // per step, over which what happens once per step is spread
  auto operator<=>(const StagePlace& o) const {
    return std::tuple(ends.first, ends.last, sequences, in_flight, waiting, micro_batches) <=>
           std::tuple(o.ends.first, o.ends.last, o.sequences, o.in_flight, o.waiting, o.micro_batches);
  }
  bool operator==(const StagePlace& o) const { return (*this <=> o) == 0; }
};

// What a block of one kind costs.
struct BlockCost {
  double seconds = 0;  // of a micro-batch
  double sync_s = 0;   // of a step
  // On the rank where they weigh most, as bytes of the group's smallest device; the last of the stage's ends, which are
  // held as their neighbouring block is.
  double held = 0, in_flight = 0, waiting = 0, transient = 0, end = 0;

  double step_s(const StagePlace& place) const { return seconds + sync_s / static_cast<double>(place.micro_batches); }
  // As long as the stage's place asks for it.
  double held_bytes(const StagePlace& place) const {
    return held + static_cast<double>(place.in_flight) * in_flight + static_cast<double>(place.waiting) * waiting;
  }
};
// What a group can do with blocks, wherever they stand in a pipeline.
struct BlockOption {
  LayerStrategy strategy;
  std::vector<double> shares;
  std::vector<BlockCost> blocks;  // by kind of layer
  double end_s = 0;               // of the stage's ends
};
struct GroupOptions {
  double budget_bytes = 0;  // of the smallest device
  std::vector<BlockOption> options;
};
GroupOptions group_options(const TrainProblem& problem, const std::vector<int>& devices, StageEnds ends,
                           std::int64_t sequences);

// The model's layers: how many of each kind there are in any range, in constant time.
class LayerLine {
 public:
  explicit LayerLine(const Architecture& arch);
  std::int64_t layers() const { return std::ssize(before_.front()) - 1; }
  std::size_t kinds() const { return before_.size(); }
  std::int64_t count(std::size_t kind, std::int64_t first, std::int64_t end) const {
    return before_[kind][static_cast<std::size_t>(end)] - before_[kind][static_cast<std::size_t>(first)];
  }
  // Of what a block of each kind counts.
  double sum(const std::vector<double>& of_kind, std::int64_t first, std::int64_t end) const {
    double sum = static_cast<double>(count(0, first, end)) * of_kind[0];
    for (std::size_t kind = 1; kind < kinds(); ++kind)
      sum += static_cast<double>(count(kind, first, end)) * of_kind[kind];
    return sum;
  }

 private:
  std::vector<std::vector<std::int64_t>> before_;  // by kind, then by layer
};

class StrategyTable {
 public:
  StrategyTable(const GroupOptions& group, const StagePlace& place, const LayerLine& line);

  // Seconds per micro-batch of a stage of this many layers from `first` on, forward and backward, with its ends and its
  // share of what happens once per step; infinite where they do not fit. From 1 to the model's layers.
  double seconds(std::int64_t first, std::int64_t layers) const {
    return row(first).seconds[static_cast<std::size_t>(layers)];
  }
  std::int64_t most_layers() const { return most_layers_; }
  // Ranges of the same strategy, together all layers.
  StageChoice choice(std::int64_t first, std::int64_t layers) const;

 private:
  struct Mix {
    LayerStrategy at_end, other;
    std::int64_t count = 0;  // of the first
    std::vector<double> shares;
  };
  struct Row {
    std::vector<Mix> mixes;       // by number of layers
    std::vector<double> seconds;  // the same
  };
  struct Blocks;
  void fill(const std::vector<Blocks>& blocks, double budget_bytes, const StagePlace& place, const LayerLine& line,
            std::int64_t first);
  const Row& row(std::int64_t first) const { return rows_[rows_.size() == 1 ? 0 : static_cast<std::size_t>(first)]; }

  bool reversed_ = false;  // the stage's end is the head
  std::vector<Row> rows_;  // by the first layer; where all layers are alike, one for all
  std::int64_t most_layers_ = 0;
};

// The quickest mix that fits, by the chain kernel: of all strategies, also of several degrees; of unlike devices, of
// those with these shares.
StageChoice best_strategies(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
                            LayerRange layers, const std::vector<double>& shares);

// What more memory on its devices would save a stage with these layers: seconds of a micro-batch per byte on each
// device, the slope of the kernel's relaxation. 0 where memory does not bind.
double memory_price_s_per_byte(const TrainProblem& problem, const std::vector<int>& devices, const StagePlace& place,
                               LayerRange layers, const std::vector<double>& shares);

class StrategyTables {
 public:
  explicit StrategyTables(const TrainProblem& problem) : problem_(problem), line_(problem.model.arch) {}
  const LayerLine& line() const { return line_; }
  // Devices of one type in one machine, or any others.
  const StrategyTable& table(const std::vector<int>& devices, const StagePlace& where);

 private:
  using Look = std::vector<double>;  // types and links
  const TrainProblem& problem_;
  const LayerLine line_;
  std::mutex mutex_;
  std::map<std::tuple<Look, bool, bool, std::int64_t>, std::unique_ptr<GroupOptions>> options_;  // ends, sequences
  std::map<std::pair<const GroupOptions*, StagePlace>, std::unique_ptr<StrategyTable>> tables_;
};

}  // namespace motley
