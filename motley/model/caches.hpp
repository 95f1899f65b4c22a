// What the layers of a rank keep of the sequences that it serves, by kind of layer. One arithmetic for planner,
// verify() and engine.
//
//   full attention  keys and values of all tokens, in the blocks of the cache that each sequence takes as it grows
//   a window        the same; or, where that takes less, of the window alone. Each slot has as many blocks of such a
//                   layer as a window can touch: block j of a sequence is the (j mod n)-th of its slot's n. Behind
//                   those of all slots lie blocks for the tokens of one step, which may be more than a slot has room
//                   for.
//   a delta net     no keys and values, but in each slot a state and the last inputs of its convolution, in fp32.
#pragma once

#include <cstdint>

#include "motley/model/model.hpp"

namespace motley {

struct CacheRoom {
  std::int64_t tokens = 0;     // of all sequences, in each layer
  std::int64_t sequences = 0;  // that have a slot at once; 0: none has, and windows are held whole
  bool operator==(const CacheRoom&) const = default;
};

// Whether layers keep something of a sequence that does not grow with it, so that sequences have slots.
bool has_slots(const Architecture& arch);
bool has_states(const Architecture& arch);  // of delta nets, without which a sequence cannot go on
// That a window of tokens touches, wherever it begins.
std::int64_t window_blocks(std::int64_t window, std::int64_t block_tokens);
// The blocks that each slot has in a layer of this kind; 0: sequences have all their tokens in the cache's blocks.
std::int64_t slot_blocks(const LayerKind& kind, const CacheRoom& room, const StepLimits& limits);
// Of a layer of this kind, in all.
std::int64_t cache_blocks(const LayerKind& kind, const CacheRoom& room, const StepLimits& limits);
// Whether a slot of this many blocks still has what the token at `position` looks back on once all before `end` have
// been computed.
bool slot_reaches(std::int64_t blocks, std::int64_t window, std::int64_t block_tokens, std::int64_t position,
                  std::int64_t end);

// Of the states of one layer of a rank, where this many sequences have a slot.
std::int64_t states_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, std::int64_t sequences);
// Of one rank: of one layer, and of several.
std::int64_t cache_bytes(const Architecture& arch, std::int64_t layer, const Shard& shard, DType kv_type,
                         const CacheRoom& room, const StepLimits& limits);
std::int64_t cache_bytes(const Architecture& arch, const LayerRange& layers, const Shard& shard, DType kv_type,
                         const CacheRoom& room, const StepLimits& limits);

// Bytes that these layers keep of one sequence of this many tokens, over all heads.
double kv_bytes_of(const Architecture& arch, const LayerRange& layers, DType kv_type, double tokens);

}  // namespace motley
