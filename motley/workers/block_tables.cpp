#include "motley/workers/block_tables.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

void BlockTables::complete(Step& step) {
  for (StepSequence& part : step.sequences) complete(step.step, part);
}

void BlockTables::complete(std::uint64_t step, StepSequence& part) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::peer, fmt::format("step {}: sequence {}: {}", step, part.sequence, what));
  };
  if (part.known_blocks == 0) forget(part.sequence);
  const auto found = tables_.find(part.sequence);
  const std::int64_t known = found == tables_.end() ? 0 : std::ssize(found->second);
  if (part.known_blocks != known)
    refuse(fmt::format("its next blocks follow {} others, but {} are known", part.known_blocks, known));
  if (known == 0 && part.blocks.empty()) refuse("it has no blocks");
  Tables::value_type& entry = *tables_.try_emplace(part.sequence).first;
  std::vector<std::int32_t>& table = entry.second;
  for (const std::int32_t block : part.blocks) {
    if (block < 0 || block >= std::ssize(owners_))
      refuse(fmt::format("block {} is outside of the {} blocks of the cache", block, owners_.size()));
    Tables::value_type*& owner = owners_[static_cast<std::size_t>(block)];
    if (owner == &entry) refuse(fmt::format("block {} is listed twice", block));
    if (owner != nullptr) forget(owner->first);
    owner = &entry;
    table.push_back(block);
  }
  part.known_blocks = 0;
  part.blocks = table;
}

void BlockTables::forget(std::uint64_t sequence) {
  const auto found = tables_.find(sequence);
  if (found == tables_.end()) return;
  for (const std::int32_t block : found->second) owners_[static_cast<std::size_t>(block)] = nullptr;
  tables_.erase(found);
}

}  // namespace motley
