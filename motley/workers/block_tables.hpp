// The block tables of the sequences in a worker's steps, which name only the blocks that are new.
//
// No message says that a sequence has ended or was preempted: another sequence that takes one of its blocks shows it.
// So all tables together never hold more than the cache has blocks.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "motley/workers/worker_messages.hpp"

namespace motley {

class BlockTables {
 public:
  // Of the cache.
  explicit BlockTables(std::int64_t blocks) : owners_(static_cast<std::size_t>(blocks)) {}
  BlockTables(BlockTables&&) = default;  // no copies: owners point at their tables
  BlockTables& operator=(BlockTables&&) = default;

  // Puts its whole table into each part of the step. Throws a peer error where a part does not follow what was named
  // before, and for a block that is outside of the cache or twice in a table.
  void complete(Step& step);
  std::size_t sequences() const { return tables_.size(); }

 private:
  using Tables = std::unordered_map<std::uint64_t, std::vector<std::int32_t>>;

  void complete(std::uint64_t step, StepSequence& part);
  void forget(std::uint64_t sequence);

  Tables tables_;                            // by sequence
  std::vector<Tables::value_type*> owners_;  // of each block: whose table has it; null: none
};

}  // namespace motley
