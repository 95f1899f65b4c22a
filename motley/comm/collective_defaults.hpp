// The library's own choice of program, where the caller brings no plan.
#pragma once

#include <cstdint>

#include "motley/comm/collective_frame.hpp"
#include "motley/plan/collective.hpp"

namespace motley {

// Up to here an all_reduce lets everybody send everything to everybody, and each rank adds for itself: one round.
constexpr std::int64_t one_round_bytes = 16 << 10;

// For a vector of any size: all steps name chunk 0. Direct exchange up to 16 ranks, a ring beyond; broadcast and reduce
// go straight for small vectors, by way of equal shares for large ones. Not for messages and all_to_all.
CollectiveProgram default_program(CollectiveCall call, int ranks, int root, std::int64_t bytes);

// Bytes of a chunk for a vector of `bytes`; a multiple of 64 * ranks.
std::int64_t default_chunk_bytes(int ranks, std::int64_t bytes);

// How many chunks may be under way. The same for all ranks, whatever their links: about what fills a way of 16 MiB, as
// between continents. Near ones hold far less, since earlier chunks go first.
int chunks_at_once(std::int64_t chunk_bytes);

}  // namespace motley
