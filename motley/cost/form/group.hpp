// A tensor-parallel group prepared for pricing, and what its collectives cost.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/model/caches.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct StageEnds {
  bool first = false;  // holds the embedding
  bool last = false;   // holds the LM head
};

// What one block asks of a rank.
struct BlockWork {
  std::int64_t bytes = 0;   // of weights
  double expert_bytes = 0;  // of these its experts', of which a step reads those that its tokens take
  Experts experts = {};
  std::int64_t held_experts = 0;  // whole, or columns of them
  bool windowed = false;          // a token looks back on no more than a window
  double kv_bytes = 0;            // of one token's keys and values
  double attention_flops = 0;     // of one token, per token of context
  double state_bytes = 0;         // that it keeps of a sequence in place of keys and values
  double flops = 0;               // of one token, without attention over the context
  double expert_flops = 0;        // of these those of the experts that it takes
  double element_bytes = 0;       // of one token, that element-wise operations read and write
};

// What one rank can do, and what is asked of it.
struct Rank {
  std::int64_t memory_bytes = 0;
  std::int64_t fixed_bytes[4] = {};         // reserve, buffers and weights of the ends; by first + 2 * last
  double memory_bandwidth_bytes_per_s = 0;  // peak
  double flop_per_s = 0;                    // peak, in the type that the products are computed in
  Efficiency efficiency;
  bool unpacks = false;  // its weights are quantised
  std::optional<Overhead> overhead;
  std::vector<BlockWork> blocks = {};  // by kind of layer
  double head_bytes = 0;               // final norm and LM head
  double head_flops = 0;               // of one token
};

struct TensorGroup {
  std::vector<int> devices = {};  // indices into the cluster, in rank order
  std::vector<Shard> shards = {};
  std::vector<Rank> ranks = {};
  PathSpeed link = {};  // the slowest latency and the slowest bandwidth between any two ranks
  DType weight_type = DType::bf16;
  DType kv_type = DType::bf16;
  std::optional<DType> sends_in = {};  // to the next stage; none: what it computes in
  int degree() const { return static_cast<int>(devices.size()); }
};

// Throws an input error where the block cannot be cut so (make_shards) or a device type has no suitable FLOP/s.
TensorGroup make_group(const Cluster& cluster, const Architecture& arch, std::vector<int> devices,
                       const std::vector<double>& shares, DType weight_type, DType kv_type, const StepLimits& step,
                       const std::vector<std::int64_t>& expert_shares = {});

// The same group on other devices of the same types, in rank order: only its links are others.
TensorGroup group_on(const Cluster& cluster, TensorGroup group, std::vector<int> devices);

inline constexpr StageEnds all_ends[] = {{}, {.first = true}, {.last = true}, {.first = true, .last = true}};
// Into Rank::fixed_bytes.
inline std::size_t ends_index(StageEnds ends) { return (ends.first ? 1U : 0U) + (ends.last ? 2U : 0U); }

// What room is kept for where it is open which layers a stage gets.
std::int64_t largest_block_bytes(const Rank& rank);

// The most layers that fit on every rank with this room for keys and values, whichever they are: the arithmetic of
// model/, whatever the form.
std::int64_t most_layers_in_memory(const Architecture& arch, const TensorGroup& group, StageEnds ends,
                                   const CacheRoom& caches, const StepLimits& step);

// The same by kind of layer: those fit on every rank whose sizes sum to no more than the capacity. Where ranks that
// hold unlike parts have unlike memory, some that would fit do not.
struct LayerRoom {
  std::vector<std::int64_t> size;  // by kind of layer
  std::int64_t capacity[4] = {};   // by ends_index()
};
LayerRoom layer_room(const Architecture& arch, const TensorGroup& group, const CacheRoom& caches,
                     const StepLimits& step);

// The peak for products with weights of this type; weights of 8 or 4 bits are computed with in 16 bits.
double product_flop_per_s(const DeviceType& type, DType weight_type);

// Seconds of collectives over n ranks, each with latency a and bandwidth b to every other:
//   ring      2 (n - 1) (a + X / (n b))      reduce-scatter and all-gather in n - 1 rounds each
//   direct    a + (n - 1) X / b              every rank sends its whole vector to all others at once
// all_reduce_s is the better of the two.
double all_reduce_s(const TensorGroup& group, double bytes);
// Every rank holds 1/n of `bytes` and ends with all: a + (n - 1) X / (n b).
double all_gather_s(const TensorGroup& group, double bytes);

// Whether anything from one group to another goes from machine to machine.
bool crosses_machines(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to);

// The fastest pair of devices from one group to another for `bytes`.
PathSpeed best_link(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to, double bytes);

// From the nearest device of one group to the driver, and from there to the nearest of the other.
PathSpeed driver_way(const Cluster& cluster, const std::vector<int>& from, const std::vector<int>& to);

}  // namespace motley
