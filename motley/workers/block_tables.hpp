// The block tables of the sequences in a worker's steps, which name only the blocks that are new, and which sequences
// have no blocks any more. Several tables may hold the same block.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "motley/workers/worker_messages.hpp"

namespace motley {

class BlockTables {
 public:
  // Of the cache.
  explicit BlockTables(std::int64_t blocks) : listed_(static_cast<std::size_t>(blocks)) {}

  // Puts its whole table into each part of the step. Throws a peer error where a part does not follow what was named
  // before, for a block that is outside of the cache or twice in a table, and for more tables than blocks: each
  // sequence writes to one of its own.
  void complete(Step& step);
  std::size_t sequences() const { return tables_.size(); }

 private:
  void complete(std::uint64_t step, StepSequence& part);

  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> tables_;  // by sequence
  std::vector<std::uint64_t> listed_;                                    // by block: when it was seen last in a table
  std::uint64_t looks_ = 0;                                              // through tables
};

}  // namespace motley
