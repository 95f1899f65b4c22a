// The cost form `osdp`: data parallelism chosen operator by operator, replicated or sharded, whole or in slices
// (arXiv 2209.13258, Youhe-Jiang/IJCAI2023-OptimalShardedDataParallel). Ring collectives, nothing overlaps:
//
//   N ranks, S bytes of one copy of the weights, latency a, seconds per byte b, m micro-batches, state factor f
//   gather     (N - 1) (a + S b / N), all-gather and reduce-scatter alike; k slices: k (N - 1) (a + S b / (k N))
//   replicated 2 gathers per step;      memory f S
//   sharded    2 m + 1 gathers per step (3 m + 1 where recomputation gathers again); memory f S / N, and S / k while
//              a slice works
//
// The released program has a table of measured blocks instead, and its own search: OsdpBlocks. docs/figures/osdp.md
// says where the two and motley differ.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

struct OsdpNetwork {
  int ranks = 1;
  double latency_s = 0;
  double s_per_byte = 0;
};

// An all-gather or a reduce-scatter of `bytes` in this many slices, one after the other.
double osdp_gather_seconds(const OsdpNetwork& network, double bytes, int slices = 1);

// Gathers of a sharded operator per step, in the units of the above.
enum class OsdpRecompute { no, gathers_again };
int osdp_gathers(int micro_batches, OsdpRecompute recompute = OsdpRecompute::no);

// The price of sharding: its traffic over that of replicating, (2 m + 1) / 2.
double osdp_traffic_ratio(int micro_batches);

// Shards inside groups of neighbours, replicas across them.
struct OsdpGroups {
  OsdpNetwork inside;   // of one group
  OsdpNetwork between;  // of the ranks that hold the same shard, one in every group
};

struct OsdpOperator {
  std::string name;
  double weight_bytes = 0;      // of one copy
  double compute_s = 0;         // per sample, forward and backward
  double activation_bytes = 0;  // per sample
};

struct OsdpSetting {
  OsdpNetwork network;
  std::optional<OsdpGroups> groups;  // shards inside groups are options too
  double state_factor = 4;           // of weight, gradient and moments, in copies of the weights: 4 in fp32
  double samples = 1;                // per rank and micro-batch
  int micro_batches = 1;
  std::vector<int> slices = {1};  // numbers of slices that an operator may be cut into
  OsdpRecompute recompute = OsdpRecompute::no;
};

// What an operator may do: `sharded` of `slices` slices are sharded, the rest replicated.
struct OsdpOption {
  int slices = 1;
  int sharded = 0;
  bool in_groups = false;      // shards inside groups, of the whole operator
  double micro_batch_s = 0;    // compute and gathers of one micro-batch
  double sync_s = 0;           // gradients, once per step
  double bytes = 0;            // with activations
  double transient_bytes = 0;  // a slice gathered
};
std::vector<OsdpOption> osdp_options(const OsdpOperator& op, const OsdpSetting& setting);

// ---- the released table ----

// One transformer block, by hidden size; rows are batches, levels: nothing sharded, attention, MLP, both.
struct OsdpBlock {
  std::int64_t hidden = 0;
  std::vector<std::vector<double>> time_s, memory_mb;  // [row][level]
  bool operator==(const OsdpBlock&) const = default;
};
struct OsdpBlocks {
  std::string name, source, caution;
  double overhead_mb = 0;
  std::vector<OsdpBlock> blocks;
  bool operator==(const OsdpBlocks&) const = default;

  const OsdpBlock& of_hidden(std::int64_t hidden) const;  // throws an input error
};
Schema<OsdpBlocks> schema_of(Bound<OsdpBlocks>);

OsdpBlocks read_osdp_blocks(const std::filesystem::path& path);

}  // namespace motley
