#include "motley/batching/block_pool.hpp"

#include <algorithm>
#include <limits>
#include <ranges>

#include "motley/base/error.hpp"

namespace motley {

BlockPool::BlockPool(std::int64_t count) : total_(count) {
  MOTLEY_CHECK(count >= 0 && count <= std::numeric_limits<std::int32_t>::max());
}

BlockPool::Block& BlockPool::at(std::int32_t id) {
  MOTLEY_CHECK(id >= 0 && id < std::ssize(blocks_));
  return blocks_[static_cast<std::size_t>(id)];
}

void BlockPool::reach(std::int32_t id) {
  MOTLEY_CHECK(id < total_);
  const auto known = static_cast<std::int32_t>(blocks_.size());
  if (id < known) return;
  blocks_.resize(static_cast<std::size_t>(id) + 1);
  // Below those that were let go of, and the lowest on top.
  const auto new_ones = std::views::iota(known, id + 1) | std::views::reverse;
  empty_.insert(empty_.begin(), new_ones.begin(), new_ones.end());
}

std::int32_t BlockPool::take() {
  MOTLEY_CHECK(free_count() > 0);
  if (empty_.empty() && std::ssize(blocks_) < total_) reach(static_cast<std::int32_t>(blocks_.size()));
  std::int32_t id = 0;
  if (!empty_.empty()) {
    id = empty_.back();
    empty_.pop_back();
  } else {
    id = kept_.begin()->second;
    kept_.erase(kept_.begin());
    Block& block = at(id);
    by_key_.erase(*block.key);
    block.key.reset();
    block.let_go = 0;
  }
  at(id).holders = 1;
  return id;
}

void BlockPool::hold(const std::vector<std::int32_t>& ids) {
  bool were_empty = false;
  if (!ids.empty()) reach(std::ranges::max(ids));
  for (const std::int32_t id : ids) {
    Block& block = at(id);
    were_empty = were_empty || (block.holders == 0 && block.let_go == 0);
    if (block.let_go != 0) kept_.erase(block.let_go);
    block.let_go = 0;
    ++block.holders;
  }
  if (were_empty) std::erase_if(empty_, [&](std::int32_t id) { return held(id); });
}

void BlockPool::give_back(std::int32_t id) {
  Block& block = at(id);
  MOTLEY_CHECK(block.holders > 0);
  if (--block.holders > 0) return;
  if (!block.key) {
    empty_.push_back(id);
    return;
  }
  block.let_go = ++times_let_go_;
  kept_.emplace(block.let_go, id);
}

void BlockPool::name(std::int32_t id, const LaneKey& key) {
  Block& block = at(id);
  MOTLEY_CHECK(block.holders > 0);
  if (!block.key && by_key_.emplace(key, id).second) block.key = key;
}

std::optional<std::int32_t> BlockPool::find(const LaneKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace motley
