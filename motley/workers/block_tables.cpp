#include "motley/workers/block_tables.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

void BlockTables::complete(Step& step) {
  for (const std::uint64_t sequence : step.gone) tables_.erase(sequence);
  for (StepSequence& part : step.sequences) complete(step.step, part);
}

void BlockTables::complete(std::uint64_t step, StepSequence& part) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::peer, fmt::format("step {}: sequence {}: {}", step, part.sequence, what));
  };
  if (part.known_blocks == 0) tables_.erase(part.sequence);
  const auto found = tables_.find(part.sequence);
  const std::int64_t known = found == tables_.end() ? 0 : std::ssize(found->second);
  if (part.known_blocks != known)
    refuse(fmt::format("its next blocks follow {} others, but {} are known", part.known_blocks, known));
  if (known == 0 && part.blocks.empty()) refuse("it has no blocks");
  if (known == 0 && tables_.size() >= listed_.size())
    refuse(fmt::format("{} others hold all {} blocks of the cache", tables_.size(), listed_.size()));
  std::vector<std::int32_t>& table = tables_[part.sequence];
  if (!part.blocks.empty()) {
    ++looks_;
    for (const std::int32_t block : table) listed_[static_cast<std::size_t>(block)] = looks_;
  }
  for (const std::int32_t block : part.blocks) {
    if (block < 0 || block >= std::ssize(listed_))
      refuse(fmt::format("block {} is outside of the {} blocks of the cache", block, listed_.size()));
    if (std::exchange(listed_[static_cast<std::size_t>(block)], looks_) == looks_)
      refuse(fmt::format("block {} is listed twice", block));
    table.push_back(block);
  }
  part.known_blocks = 0;
  part.blocks = table;
}

}  // namespace motley
