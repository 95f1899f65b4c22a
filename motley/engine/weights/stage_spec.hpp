// What a rank of a stage holds and may be asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/model/caches.hpp"
#include "motley/model/offload.hpp"

namespace motley {

struct StageSpec {
  Architecture arch = {};
  LayerRange layers = {};
  bool embedding = false;
  bool head = false;
  int rank = 0;
  int degree = 1;
  std::vector<double> shares = {};               // empty: equal
  std::vector<std::int64_t> expert_shares = {};  // empty: columns of every expert
  DType weight_type = DType::fp32;
  DType kv_type = DType::fp32;
  std::int64_t kv_tokens = 0;
  std::int64_t kv_sequences = 0;
  StepLimits limits = {};
  std::optional<LayerHomes> offload = {};     // none: all in the device's own memory
  std::vector<LayerRange> standby = {};       // layers of which it holds the weights as well
  std::vector<LayerRange> host_standby = {};  // the same in the host's memory, where the device has its own
  // Of layers that stay in the device's memory: what is offloaded is held whole, windows or not.
  CacheRoom cache_room() const { return {kv_tokens, offload ? 0 : kv_sequences}; }
  std::vector<Shard> shards() const { return make_shards(arch, degree, shares, weight_type, expert_shares); }
  // What one step may hold: as many micro-batches as share a pass over the weights.
  StepLimits step_limits() const {
    const std::int64_t batches = offload ? offload->batches : 1;
    return {limits.max_tokens * batches, limits.max_sequences * batches, limits.block_tokens};
  }
};

}  // namespace motley
