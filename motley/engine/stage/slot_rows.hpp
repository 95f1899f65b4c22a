// A step's parts as layers find them where each slot has the blocks of a window alone (model/caches.hpp).
//
// A part that reaches no further than its slot's blocks lies there. Of one that does, as a chunk of a prompt, the new
// blocks lie behind those of all slots while it is attended to; then the last of them are copied to the slot.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/engine/ops/ops.hpp"

namespace motley {

struct SlotRows {
  std::vector<std::int32_t> blocks;     // of all tables; what lies behind the windows of a part's tokens is not theirs
  std::vector<SequenceRows> sequences;  // whose tables are parts of `blocks`
  std::vector<std::int64_t> from, to;   // blocks to be copied once the layer is done
  SlotRows() = default;
  SlotRows(SlotRows&&) = default;  // no copies: tables point into `blocks`
  SlotRows& operator=(SlotRows&&) = default;
};
SlotRows slot_rows(const std::vector<SequenceRows>& sequences, std::int64_t window, std::int64_t block_tokens,
                   std::int64_t slots);

}  // namespace motley
