#include "motley/model/caches.hpp"

#include <algorithm>

#include "motley/base/rounding.hpp"

namespace motley {
namespace {

std::int64_t blocks_of(std::int64_t tokens, std::int64_t block_tokens) { return ceil_div(tokens, block_tokens); }

// Of windows alone. Each part of a step may begin a block.
std::int64_t blocks_of_slots(const LayerKind& kind, const CacheRoom& room, const StepLimits& limits) {
  return room.sequences * window_blocks(kind.window, limits.block_tokens) +
         blocks_of(limits.max_tokens, limits.block_tokens) + limits.max_sequences;
}

}  // namespace

bool has_slots(const Architecture& arch) { return widest_window(arch) > 0 || has_states(arch); }

bool has_states(const Architecture& arch) {
  return std::ranges::any_of(arch.kinds, [](const LayerKind& kind) { return bool(kind.delta); });
}

// State and inputs are a tensor each.
std::int64_t states_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, std::int64_t sequences) {
  const DeltaNet& delta = arch.kind(layer).delta;
  if (!delta) return 0;
  const std::int64_t value_heads = shard.delta.at(arch.kind_index(layer)).size() * delta.values_of_key(),
                     state = bytes_of(DType::fp32, value_heads * delta.key_dim * delta.value_dim);
  const auto held = [&](std::int64_t bytes) { return Buffer{"", DType::fp32, {sequences * bytes / 4}}.bytes(); };
  return held(state) + held(state_bytes(arch, layer, shard) - state);
}

std::int64_t window_blocks(std::int64_t window, std::int64_t block_tokens) {
  return blocks_of(window, block_tokens) + 1;
}

std::int64_t slot_blocks(const LayerKind& kind, const CacheRoom& room, const StepLimits& limits) {
  const bool has_slots = kind.window > 0 && room.sequences > 0 &&
                         blocks_of_slots(kind, room, limits) < blocks_of(room.tokens, limits.block_tokens);
  return has_slots ? window_blocks(kind.window, limits.block_tokens) : 0;
}

std::int64_t cache_blocks(const LayerKind& kind, const CacheRoom& room, const StepLimits& limits) {
  return slot_blocks(kind, room, limits) > 0 ? blocks_of_slots(kind, room, limits)
                                             : blocks_of(room.tokens, limits.block_tokens);
}

bool slot_reaches(std::int64_t blocks, std::int64_t window, std::int64_t block_tokens, std::int64_t position,
                  std::int64_t end) {
  const std::int64_t first = std::max<std::int64_t>(0, position - window + 1) / block_tokens;
  return first >= blocks_of(end, block_tokens) - blocks;
}

std::int64_t cache_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType kv_type,
                         const CacheRoom& room, const StepLimits& limits) {
  if (arch.kind(layer).delta) return states_bytes(arch, layer, shard, room.sequences);
  const std::int64_t blocks = cache_blocks(arch.kind(layer), room, limits);
  return kv_cache_bytes(arch, layer, shard, kv_type, blocks * limits.block_tokens, limits.block_tokens);
}

std::int64_t cache_bytes(const Architecture& arch, const LayerRange& layers, const Shard& shard, DType kv_type,
                         const CacheRoom& room, const StepLimits& limits) {
  return sum_over_layers(arch, layers,
                         [&](std::int64_t layer) { return cache_bytes(arch, layer, shard, kv_type, room, limits); });
}

double kv_bytes_of(const Architecture& arch, const LayerRange& layers, DType kv_type, double tokens) {
  const Shard whole = has_states(arch) ? make_shards(arch, 1).front() : Shard();
  return sum_over_layers(arch, layers, [&](std::int64_t layer) {
    if (arch.kind(layer).delta) return static_cast<double>(state_bytes(arch, layer, whole));
    const auto window = static_cast<double>(arch.kind(layer).window);
    return static_cast<double>(kv_bytes_per_token(arch, layer, kv_type)) *
           (window > 0 ? std::min(tokens, window) : tokens);
  });
}

}  // namespace motley
