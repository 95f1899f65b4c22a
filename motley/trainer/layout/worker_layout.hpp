// Where a training plan puts what: its workers, the groups in which they meet, and the rows that pass between them.
// Functions of the plan alone, so that every worker finds the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/plan/gradients.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

// The devices of all replicas, in the order of replicas, stages and ranks: each is the worker of this number.
std::vector<std::string> train_devices(const TrainPlan& plan);

struct TrainPlace {
  std::size_t replica = 0, stage = 0;
  int rank = 0;          // among the stage's devices
  int first_worker = 0;  // of the stage
};
// Throws an input error where the device is in no stage.
TrainPlace place_of(const TrainPlan& plan, const std::string& device);

// The ranks of one strategy: tensor-parallel rank `tp` of data-parallel rank `dp` is one worker.
struct StrategyRanks {
  const TrainStage* stage = nullptr;
  const LayerStrategy* strategy = nullptr;
  int first_worker = 0;

  int worker(std::int64_t dp, std::int64_t tp) const { return first_worker + static_cast<int>(dp * strategy->tp + tp); }
  std::vector<int> tensor_group(std::int64_t dp) const;  // by tensor-parallel rank
  std::vector<int> data_group(std::int64_t tp) const;    // by data-parallel rank
  std::vector<Shard> shards(const Architecture& arch) const;
};
// Of a replica's strategies, first layer to last.
std::vector<StrategyRanks> strategies_of(const TrainPlan& plan, std::size_t replica);

// ---- the batch ----

// Sequences [bounds[r], bounds[r + 1]) of a step are replica r's.
std::vector<std::int64_t> replica_bounds(const TrainPlan& plan);
// Of these, [bounds[i], bounds[i + 1]) are its micro-batch i.
std::vector<std::int64_t> micro_batch_bounds(std::int64_t sequences, std::int64_t micro_batches);
// Of a micro-batch's, [bounds[d], bounds[d + 1]) are data-parallel rank d's: by the stage's shares, or alike. A rank
// may have none.
std::vector<std::int64_t> data_bounds(const StrategyRanks& ranks, std::int64_t sequences);

// ---- crossings ----

// Rows that one worker hands to another, or to itself.
struct RowTransfer {
  int from = 0, to = 0;
  Span rows;  // of the micro-batch's tokens
  bool operator==(const RowTransfer&) const = default;
};
// Rows that all of a receiving tensor-parallel group need, of one sender: each rank receives its part, and they gather.
struct RowRegion {
  Span rows;
  std::int64_t dp = 0;             // the receiving group
  std::vector<RowTransfer> parts;  // by tensor-parallel rank of the receivers; empty parts send nothing
};
// From the ranks of one strategy to those of another, for a micro-batch: every row once to each receiving group.
std::vector<RowRegion> crossing(const StrategyRanks& from, const StrategyRanks& to, std::int64_t sequences,
                                std::int64_t sequence_length);
// Whether rows stay where they are.
bool stays(const StrategyRanks& from, const StrategyRanks& to);

// ---- groups ----

enum class GroupKind : std::uint8_t {
  all,       // every worker
  tensor,    // ranks that share a block's tensors
  data,      // ranks that share the states of one tensor-parallel rank
  gradients  // holders of the same parts of gradients
};
struct TrainGroup {
  GroupKind kind = GroupKind::all;
  std::vector<int> workers;  // ascending, at least two
  auto operator<=>(const TrainGroup&) const = default;
  std::string name() const;
};
// In one order for all.
std::vector<TrainGroup> train_groups(const TrainPlan& plan);
// Directed: rows pass from the first to the second. In one order for all.
std::vector<std::pair<int, int>> crossing_pairs(const TrainPlan& plan);

// ---- gradients ----

// Parts that the same workers hold; together at most this many bytes, but for a part that is larger by itself.
struct GradientBucket {
  std::vector<int> workers;  // ascending; one alone has nothing to exchange
  std::vector<GradientSlice> parts;
  std::int64_t elements = 0;
  std::int64_t layer = 0;  // once this layer's backward passes are done, all of it is there; -1: the embedding's
};
constexpr std::int64_t gradient_bucket_bytes = std::int64_t{4} << 20;
// In the order in which backward passes finish them.
std::vector<GradientBucket> gradient_buckets(const TrainPlan& plan, std::int64_t most_bytes = gradient_bucket_bytes);

}  // namespace motley
