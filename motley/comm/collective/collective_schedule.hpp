// One rank's part of a collective program, ready to run.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/plan/collective_program.hpp"

namespace motley {

// What travels in one frame.
struct SchedulePiece {
  std::uint32_t offset = 0;  // from the step's first position
  std::uint32_t length = 0;  // above 0; less in a short last chunk
  std::uint32_t block = 0;   // it lies in one
  std::int64_t inside = 0;   // position in the chunk's part of that block
};

struct ScheduleStep {
  CollectiveStepKind kind = CollectiveStepKind::send;
  int peer = -1;
  // Of a send: which of the peer's steps that receive from this rank takes it, counted in the order of its list.
  std::uint32_t taker = 0;
  std::int64_t first = 0, last = 0;            // positions in the chunk
  std::vector<SchedulePiece> pieces = {};      // in the order of their offsets; all of the range
  std::vector<std::uint32_t> dependents = {};  // steps that wait for this one
  std::uint32_t prerequisites = 0;             // steps that this one waits for
};

// The vector is `blocks` equal blocks; chunk c is piece c of every block, one after the other: position p of a chunk of
// `chunk_bytes` is in block p / (chunk_bytes / blocks). With one block a chunk is simply a part of the vector. The last
// chunk may be shorter in every block; steps are cut accordingly.
struct CollectiveSchedule {
  int ranks = 0;
  int rank = 0;
  int blocks = 1;
  std::int64_t chunk_bytes = 0;
  std::vector<ScheduleStep> steps = {};
  std::vector<std::vector<std::uint32_t>> inbound = {};  // by peer: places of the steps that receive from it
  std::uint32_t hash = 0;  // the same on all ranks that compiled the same program for the same cut
};

// A program whose steps all name chunk 0 says what happens to any part of the vector, and is cut to `chunk_bytes`;
// others run as one chunk of that many bytes. Boundaries are scaled and rounded down to `align` bytes. `chunk_bytes`
// must be a multiple of blocks * align. Throws an input error where sends and receives do not match, or a step names a
// rank or range that does not exist.
CollectiveSchedule compile_schedule(const CollectiveProgram& program, int rank, std::int64_t chunk_bytes, int blocks,
                                    std::int64_t align);

// Blocks of uneven sizes that travel once, from the input of one rank to the output of another.
struct ScheduleTransfer {
  CollectiveStepKind kind = CollectiveStepKind::send;  // or recv
  int peer = -1;
  std::int64_t first = 0, last = 0;  // in this rank's input (send) or output (recv)
};
// At most one transfer per peer and direction; sizes must be those of the other side. No range ends after `bytes`.
CollectiveSchedule transfer_schedule(int rank, int ranks, std::int64_t bytes,
                                     const std::vector<ScheduleTransfer>& transfers);

}  // namespace motley
