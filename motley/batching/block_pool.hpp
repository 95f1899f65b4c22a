// Ids of KV blocks, or of slots: who holds them, and what blocks that none holds still have in them.
//
// A block that is full may be held by several sequences that begin with the same tokens. It has a key then, by which
// the next one finds it, and keeps it after the last of them has let go, until the pool needs it for other tokens.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace motley {

// A digest of the tokens of a block and of all before it.
struct BlockKey {
  std::array<std::uint64_t, 4> digest = {};
  auto operator<=>(const BlockKey&) const = default;
};

// Keys and values lie in the stages of one lane.
struct LaneKey {
  std::size_t lane = 0;
  BlockKey key;
  auto operator<=>(const LaneKey&) const = default;
};

class BlockPool {
 public:
  explicit BlockPool(std::int64_t count);
  std::int64_t free_count() const {
    return total_ - std::ssize(blocks_) + std::ssize(empty_) + std::ssize(kept_);
  }  // that none holds
  std::int64_t total() const { return total_; }

  // One that none holds: with nothing in it, or else that which has been let go of for longest, and which loses its
  // key. Throws when there is none: ask free_count() first.
  std::int32_t take();
  // Of these, some may be held already. Throws where one is none of the pool's.
  void hold(const std::vector<std::int32_t>& ids);
  void give_back(std::int32_t id);  // throws on a block that none holds
  bool held(std::int32_t id) const {
    return id < std::ssize(blocks_) && blocks_[static_cast<std::size_t>(id)].holders > 0;
  }

  // The block, which is held, has this in it from now on; unless it or another one has that already.
  void name(std::int32_t id, const LaneKey& key);
  std::optional<std::int32_t> find(const LaneKey& key) const;

 private:
  struct Block {
    std::int32_t holders = 0;
    std::uint64_t let_go = 0;  // its place in kept_; 0: none
    std::optional<LaneKey> key = {};
  };
  struct Hash {
    std::size_t operator()(const LaneKey& key) const { return key.key.digest[0] ^ key.lane; }
  };
  Block& at(std::int32_t id);
  void reach(std::int32_t id);  // blocks_ has it from now on, and those before it

  std::int64_t total_;
  std::vector<Block> blocks_;                   // the first ones; those that follow were never held
  std::vector<std::int32_t> empty_;             // of these, without a key
  std::map<std::uint64_t, std::int32_t> kept_;  // with one, in the order in which they were let go of
  std::uint64_t times_let_go_ = 0;
  std::unordered_map<LaneKey, std::int32_t, Hash> by_key_;
};

}  // namespace motley
