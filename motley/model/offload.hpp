// Where a stage that offloads keeps what it holds: the device's own memory, the host's, the disk. One rule for planner,
// verify() and engine.
//
//   weights      by whole blocks ("layers"). Embedding and head stay on the device. A block whose home is elsewhere is
//                streamed: it is read into one of two buffers on the device, each as large as the largest such block,
//                while the block before it computes.
//   keys, values by whole layers, all sequences of a layer alike. `cpu_attention`: where they lie outside the device,
//                the host's processors compute attention in host memory, and those of the disk pass through two buffers
//                there. Otherwise they pass through two buffers on the device. Such a buffer holds what one micro-batch
//                has in one layer: ceil(kv_tokens / batches) tokens, which no micro-batch's sequences exceed. Windows
//                do not shrink them. States of delta nets stay on the device.
//   activations  by whole micro-batches: with `batches` > 1, the hidden states of each between two layers. Never disk.
//
// Shares are multiples of 1/layers, or of 1/batches for activations, so nothing is rounded. Layers that are not on the
// device are spread evenly among those that are, and of these the ones on disk evenly among those of the host: of N
// layers, n of them away, layer i is away where floor((i + 1) n / N) > floor(i n / N). So the last layer is away and
// the first is not, unless all are: the reads are ahead when a pass begins.
//
// What goes between disk and an accelerator passes through host memory: two buffers there, as large as the device's.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/model/caches.hpp"

namespace motley {

enum class Tier { device, host, disk };
EnumNames<Tier> names_of(Bound<Tier>);

struct TierShares {
  double device = 1;
  double host = 0;
  double disk = 0;
  bool operator==(const TierShares&) const = default;
};

struct TierCounts {
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t disk = 0;
  std::int64_t total() const { return device + host + disk; }
  std::int64_t away() const { return host + disk; }
  bool operator==(const TierCounts&) const = default;
};
TierShares shares_of(const TierCounts& counts);
// Of `units` alike. Throws an input error where a share is not a multiple of 1/units, or they do not sum to 1.
TierCounts counts_of(const TierShares& shares, std::int64_t units);
// The tier of each of counts.total() units, in order.
std::vector<Tier> spread(const TierCounts& counts);

// How a stage offloads, as plans say it.
struct Offload {
  std::int64_t batches = 1;  // micro-batches that share one pass over the weights
  TierShares weights = {}, kv = {}, activations = {};
  bool cpu_attention = false;
  bool operator==(const Offload&) const = default;
};

// The same, layer by layer.
struct LayerHomes {
  std::int64_t batches = 1;
  std::vector<Tier> weights;      // home of each layer's weights
  std::vector<Tier> kv;           // home of each layer's keys and values
  std::vector<Tier> activations;  // home of each micro-batch's hidden states
  bool cpu_attention = false;
  bool operator==(const LayerHomes&) const = default;
};
// Throws an input error for shares that are not whole layers or micro-batches, and for activations on disk.
LayerHomes place_layers(const Offload& offload, std::int64_t layers);

// Keys and values go to a disk and back in buffers of one size. Throws an input error where some are there of a model
// whose layers have unlike heads.
void check_kv_homes(const Architecture& arch, const std::vector<Tier>& kv);

// Of streamed weights, and of keys and values, on the device; and in host memory where they pass through it.
constexpr std::int64_t offload_buffers = 2;

struct PlacedBytes {
  RankMemory device, host, disk;
};
// Bytes of a rank in each tier, buffers included. `staged`: disk and device exchange bytes through host memory, as with
// an accelerator.
PlacedBytes placed_bytes(const Architecture& arch, const ModelPart& part, const Shard& shard, DType weight_type,
                         DType kv_type, const CacheRoom& caches, const StepLimits& limits, const LayerHomes& placement,
                         bool staged);
// Tokens of a buffer of keys and values.
std::int64_t kv_buffer_tokens(std::int64_t kv_tokens, std::int64_t batches);

}  // namespace motley
