// The library's own choice of program, where the caller brings no plan.
#pragma once

#include <cstdint>

#include "motley/comm/transport/collective_frame.hpp"
#include "motley/plan/collective_program.hpp"

namespace motley {

// Up to here an all_reduce lets everybody send everything to everybody, and each rank adds for itself: one round.
constexpr std::int64_t one_round_bytes = 16 << 10;

// For a vector of any size: all steps name chunk 0. Direct exchange up to 16 ranks, a ring beyond; broadcast and reduce
// go straight for small vectors, by way of equal shares for large ones. Not for messages and all_to_all.
CollectiveProgram default_program(CollectiveCall call, int ranks, int root, std::int64_t bytes);

// Bytes of a chunk for a vector of `bytes`; a multiple of 64 * ranks.
std::int64_t default_chunk_bytes(int ranks, std::int64_t bytes);

// How many chunks may be under way; the same for all ranks. On one host about what its caches hold; between hosts what
// fills a long way in both directions, and what waits on it behind a lost packet.
int chunks_at_once(std::int64_t chunk_bytes, bool one_host);

}  // namespace motley
