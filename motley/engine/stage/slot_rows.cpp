#include "motley/engine/stage/slot_rows.hpp"

#include <algorithm>
#include <span>

#include "motley/base/rounding.hpp"
#include "motley/model/caches.hpp"

namespace motley {

SlotRows slot_rows(const std::vector<SequenceRows>& sequences, std::int64_t window, std::int64_t block_tokens,
                   std::int64_t slots) {
  const auto blocks_for = [&](std::int64_t tokens) { return ceil_div(tokens, block_tokens); };
  const std::int64_t of_slot = window_blocks(window, block_tokens);
  std::int64_t entries = 0;
  for (const SequenceRows& rows : sequences) entries += blocks_for(rows.position + rows.count);
  SlotRows made;
  made.blocks.reserve(static_cast<std::size_t>(entries));
  std::int64_t behind = slots * of_slot;  // the first block there that is free
  for (const SequenceRows& rows : sequences) {
    const std::int64_t end = blocks_for(rows.position + rows.count), begun = blocks_for(rows.position);
    const std::int64_t first_seen = std::max<std::int64_t>(0, rows.position - window + 1) / block_tokens;
    const bool fits = end - first_seen <= of_slot;
    const std::size_t start = made.blocks.size();
    for (std::int64_t block = 0; block < end; ++block) {
      const std::int64_t in_slot = rows.slot * of_slot + block % of_slot;
      const bool stays = fits || block < begun;
      made.blocks.push_back(static_cast<std::int32_t>(stays ? in_slot : behind));
      if (stays) continue;
      if (block >= end - of_slot) {
        made.from.push_back(behind);
        made.to.push_back(in_slot);
      }
      ++behind;
    }
    made.sequences.push_back(rows);
    made.sequences.back().blocks = std::span(made.blocks).subspan(start);
  }
  return made;
}

}  // namespace motley
