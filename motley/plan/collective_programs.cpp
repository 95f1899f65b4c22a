#include "motley/plan/collective_programs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

void collect_ranks(const CollectiveGroup& group, std::vector<int>& ranks) {
  if (group.members.empty()) ranks.push_back(group.rank);
  for (const auto& member : group.members) collect_ranks(member, ranks);
}

std::int64_t aligned(double position, std::int64_t alignment, std::int64_t end) {
  const auto whole = static_cast<std::int64_t>(std::llround(position / static_cast<double>(alignment)));
  return std::min(whole * alignment, end);
}

std::vector<CollectiveBlock> cut(std::int64_t bytes, const std::vector<int>& owners, const std::vector<double>& weights,
                                 std::int64_t alignment) {
  MOTLEY_CHECK(weights.empty() || weights.size() >= owners.size());
  const auto weight = [&](int owner) { return weights.empty() ? 1.0 : weights[at(owner)]; };
  double total = 0, before = 0;
  for (const int owner : owners) total += weight(owner);
  MOTLEY_CHECK(total > 0);
  std::vector<CollectiveBlock> blocks;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    before += weight(owners[i]);
    const std::int64_t last =
        i + 1 == owners.size() ? bytes : aligned(before / total * static_cast<double>(bytes), alignment, bytes);
    blocks.push_back({owners[i], first, std::max(first, last)});
    first = blocks.back().last;
  }
  return blocks;
}

// Where a rank stands in the hierarchy: at every group on the way up, which member it is in.
struct Places {
  std::vector<int> digits;  // innermost first
  std::vector<int> heights;
};

int place(const CollectiveGroup& group, std::vector<Places>& places) {
  if (group.members.empty()) return 0;
  int height = 0;
  for (const auto& member : group.members) height = std::max(height, place(member, places));
  ++height;
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    std::vector<int> ranks;
    collect_ranks(group.members[m], ranks);
    for (const int rank : ranks) {
      places[at(rank)].digits.push_back(static_cast<int>(m));
      places[at(rank)].heights.push_back(height);
    }
  }
  return height;
}

int largest_rank(const CollectiveGroup& group) {
  int largest = group.rank;
  for (const auto& member : group.members) largest = std::max(largest, largest_rank(member));
  return largest;
}

std::vector<Places> places_in(const CollectiveGroup& group) {
  std::vector<Places> places(at(largest_rank(group)) + 1);
  place(group, places);
  return places;
}

// Reduces along the hierarchy. After each group every block has one holder in it: its owner, where that is a member,
// otherwise the holder in the member whose place is that of the owner in its own group of the same height, so that
// groups that are alike keep the same parts.
class ReduceScatter {
 public:
  ReduceScatter(const CollectiveGroup& group, const std::vector<CollectiveBlock>& blocks)
      : blocks_(blocks), places_(places_in(group)), rounds_() {
    run(group);
  }

  std::vector<CollectiveRound> rounds() && { return std::move(rounds_); }

 private:
  struct Part {
    std::vector<int> holder;  // by block; empty: of a single rank
    int rank = -1;
    int rounds = 0;  // used up
    int at(std::size_t block) const { return holder.empty() ? rank : holder[block]; }
  };

  std::size_t chosen(std::size_t block, int height, const std::vector<int>& member_of, std::size_t members) const {
    const int owner = blocks_[block].owner;
    if (member_of[motley::at(owner)] >= 0) return motley::at(member_of[motley::at(owner)]);
    const Places& place = places_[motley::at(owner)];
    const auto found = std::lower_bound(place.heights.begin(), place.heights.end(), height);
    const auto level = found == place.heights.end() ? place.digits.size() - 1
                                                    : static_cast<std::size_t>(found - place.heights.begin());
    const auto digit = motley::at(place.digits[level]);
    return digit < members ? digit : motley::at(owner) % members;
  }

  void transfer(std::size_t round, int from, int to, const CollectiveBlock& block,
                std::unordered_map<std::int64_t, std::size_t>& open) {
    if (rounds_.size() <= round) rounds_.resize(round + 1);
    CollectiveRound& list = rounds_[round];
    const auto key = static_cast<std::int64_t>(from) << 32 | to;
    const auto [entry, added] = open.try_emplace(key, list.size());
    if (!added && list[entry->second].last == block.first) {
      list[entry->second].last = block.last;
      return;
    }
    entry->second = list.size();
    list.push_back({from, to, block.first, block.last, CollectiveStepKind::reduce});
  }

  Part run(const CollectiveGroup& group) {
    if (group.members.empty()) return {.holder = {}, .rank = group.rank, .rounds = 0};
    std::vector<Part> parts;
    std::vector<int> member_of(places_.size(), -1);
    int before = 0;
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      parts.push_back(run(group.members[m]));
      before = std::max(before, parts.back().rounds);
      std::vector<int> ranks;
      collect_ranks(group.members[m], ranks);
      for (const int rank : ranks) member_of[motley::at(rank)] = static_cast<int>(m);
    }
    const std::size_t members = parts.size();
    const bool ring = group.pattern == GroupPattern::ring;
    const int rounds = ring ? static_cast<int>(members) - 1 : 1;
    const int height = group_height(group);
    Part result{.holder = std::vector<int>(blocks_.size()), .rank = -1, .rounds = before + rounds};
    std::vector<std::unordered_map<std::int64_t, std::size_t>> open(motley::at(rounds));
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].first == blocks_[b].last) continue;
      const std::size_t target = chosen(b, height, member_of, members);
      result.holder[b] = parts[target].at(b);
      for (std::size_t step = 1; step < members; ++step) {
        const std::size_t from = (target + step) % members, to = ring ? (from + 1) % members : target;
        const std::size_t round = ring ? step - 1 : 0;
        transfer(motley::at(before) + round, parts[from].at(b), parts[to].at(b), blocks_[b], open[round]);
      }
    }
    return result;
  }

  static int group_height(const CollectiveGroup& group) {
    int height = 0;
    for (const auto& member : group.members) height = std::max(height, group_height(member));
    return group.members.empty() ? 0 : height + 1;
  }

  const std::vector<CollectiveBlock>& blocks_;
  std::vector<Places> places_;
  std::vector<CollectiveRound> rounds_;
};

constexpr const char* at_least_one = "a process alone is a collective of one rank";

void check_shape(const CollectiveShape& shape) {
  if (shape.ranks < 1) throw input_error(fmt::format("a collective of {} ranks", shape.ranks), at_least_one);
  if (shape.root < 0 || shape.root >= shape.ranks)
    throw input_error(fmt::format("rank {} cannot be the root of {} ranks", shape.root, shape.ranks),
                      fmt::format("give a rank from 0 to {}", shape.ranks - 1));
  if (shape.bytes < 0 || shape.chunks < 1 || shape.alignment < 1)
    throw input_error(
        fmt::format("{} bytes in {} chunks, aligned to {} bytes", shape.bytes, shape.chunks, shape.alignment),
        "bytes are not negative, chunks and alignment at least 1");
  if (shape.bytes % shape.chunks != 0)
    throw input_error(fmt::format("{} bytes cannot be cut into {} equal chunks", shape.bytes, shape.chunks),
                      "choose a number of chunks that divides them");
  const bool blocks =
      shape.operation == CollectiveOperation::reduce_scatter || shape.operation == CollectiveOperation::all_gather;
  if (blocks && (shape.bytes / shape.chunks) % shape.ranks != 0)
    throw input_error(fmt::format("{} ranks cannot have equal blocks of {} bytes in {} chunks", shape.ranks,
                                  shape.bytes, shape.chunks),
                      "the bytes must be a multiple of ranks times chunks");
}

}  // namespace

CollectiveGroup flat_group(const std::vector<int>& ranks, GroupPattern pattern) {
  CollectiveGroup group{.rank = -1, .pattern = pattern, .members = {}};
  for (const int rank : ranks) group.members.push_back({.rank = rank, .pattern = {}, .members = {}});
  if (ranks.size() == 1) return group.members[0];
  return group;
}

CollectiveGroup factored_group(int ranks, const std::vector<int>& factors) {
  if (ranks < 1) throw input_error(fmt::format("a collective of {} ranks", ranks), at_least_one);
  std::vector<CollectiveGroup> level;
  for (int rank = 0; rank < ranks; ++rank) level.push_back({.rank = rank, .pattern = {}, .members = {}});
  for (const int factor : factors) {
    if (factor < 2) throw input_error(fmt::format("a factor of {} does not group anything", factor), "at least 2");
    const std::size_t groups = ceil_div(level.size(), at(factor));
    std::vector<CollectiveGroup> merged;
    for (std::size_t g = 0, next = 0; g < groups; ++g) {
      const std::size_t size = level.size() / groups + (g < level.size() % groups ? 1 : 0);
      CollectiveGroup group;
      for (std::size_t m = 0; m < size; ++m) group.members.push_back(std::move(level[next++]));
      merged.push_back(size == 1 ? std::move(group.members[0]) : std::move(group));
    }
    level = std::move(merged);
  }
  if (level.size() != 1)
    throw input_error(
        fmt::format("the factors {} leave {} groups of {} ranks", fmt::join(factors, " x "), level.size(), ranks),
        "give factors whose product is the number of ranks");
  return std::move(level[0]);
}

std::vector<CollectiveBlock> share_blocks(std::int64_t bytes, int ranks, const std::vector<double>& weights,
                                          std::int64_t alignment) {
  std::vector<int> owners(at(ranks));
  std::iota(owners.begin(), owners.end(), 0);
  return cut(bytes, owners, weights, alignment);
}

std::vector<CollectiveBlock> share_blocks(std::int64_t bytes, const CollectiveGroup& group,
                                          const std::vector<double>& weights, std::int64_t alignment) {
  std::vector<int> owners;
  collect_ranks(group, owners);
  const std::vector<Places> places = places_in(group);
  std::stable_sort(owners.begin(), owners.end(),
                   [&](int a, int b) { return places[at(a)].digits < places[at(b)].digits; });
  return cut(bytes, owners, weights, alignment);
}

std::vector<CollectiveRound> reduce_scatter_rounds(const CollectiveGroup& group,
                                                   const std::vector<CollectiveBlock>& blocks) {
  auto rounds = ReduceScatter(group, blocks).rounds();
  for (auto& round : rounds)
    std::stable_sort(round.begin(), round.end(), [](const CollectiveTransfer& a, const CollectiveTransfer& b) {
      return std::tie(a.from, a.to, a.first) < std::tie(b.from, b.to, b.first);
    });
  return rounds;
}

std::vector<CollectiveRound> mirrored(const std::vector<CollectiveRound>& rounds) {
  std::vector<CollectiveRound> back(rounds.rbegin(), rounds.rend());
  for (auto& round : back)
    for (auto& transfer : round) {
      std::swap(transfer.from, transfer.to);
      transfer.kind = CollectiveStepKind::recv;
    }
  return back;
}

std::vector<CollectiveRound> broadcast_rounds(const std::vector<int>& parents, std::int64_t first, std::int64_t last) {
  std::vector<CollectiveRound> rounds;
  for (int rank = 0; rank < static_cast<int>(parents.size()); ++rank) {
    std::size_t depth = 0;
    for (int up = rank; parents[at(up)] >= 0; up = parents[at(up)]) {
      ++depth;
      MOTLEY_CHECK(depth <= parents.size());
    }
    if (depth == 0) continue;
    if (rounds.size() < depth) rounds.resize(depth);
    rounds[depth - 1].push_back({parents[at(rank)], rank, first, last, CollectiveStepKind::recv});
  }
  return rounds;
}

std::vector<int> tree_parents(int ranks, int root, int degree) {
  MOTLEY_CHECK(degree >= 1);
  std::vector<int> parents(at(ranks), -1);
  for (int place = 1; place < ranks; ++place)
    parents[at((root + place) % ranks)] = (root + (place - 1) / degree) % ranks;
  return parents;
}

CollectiveProgram program_of_rounds(const CollectiveShape& shape, const std::vector<CollectiveRound>& rounds) {
  CollectiveProgram program{.operation = shape.operation,
                            .ranks = shape.ranks,
                            .root = shape.root,
                            .bytes = shape.bytes,
                            .chunks = shape.chunks,
                            .steps = std::vector<std::vector<CollectiveStep>>(at(shape.ranks))};
  std::vector<std::vector<CollectiveStep>> sends(at(shape.ranks)), receives(at(shape.ranks));
  for (const auto& round : rounds) {
    for (const auto& transfer : round) {
      if (transfer.first == transfer.last) continue;
      sends[at(transfer.from)].push_back({.kind = CollectiveStepKind::send,
                                          .peer = transfer.to,
                                          .chunk = 0,
                                          .first = transfer.first,
                                          .last = transfer.last});
      receives[at(transfer.to)].push_back(
          {.kind = transfer.kind, .peer = transfer.from, .chunk = 0, .first = transfer.first, .last = transfer.last});
    }
    // The k-th peer after one's own sends to one's k-th send: no rank is the first of all.
    const auto distance = [&](int rank, int peer) { return (peer - rank + shape.ranks) % shape.ranks; };
    for (int rank = 0; rank < shape.ranks; ++rank) {
      auto& out = sends[at(rank)];
      auto& in = receives[at(rank)];
      std::stable_sort(out.begin(), out.end(), [&](const CollectiveStep& a, const CollectiveStep& b) {
        return distance(rank, a.peer) < distance(rank, b.peer);
      });
      std::stable_sort(in.begin(), in.end(), [&](const CollectiveStep& a, const CollectiveStep& b) {
        return distance(a.peer, rank) < distance(b.peer, rank);
      });
      auto& steps = program.steps[at(rank)];
      steps.insert(steps.end(), out.begin(), out.end());
      steps.insert(steps.end(), in.begin(), in.end());
      out.clear();
      in.clear();
    }
  }
  return program;
}

CollectiveProgram grouped_program(const CollectiveShape& shape, const CollectiveGroup& group,
                                  const std::vector<double>& weights) {
  check_shape(shape);
  if (shape.operation == CollectiveOperation::broadcast)
    throw input_error("a broadcast goes down a tree, not along groups", "tree_program() makes one from parents");
  const std::int64_t chunk = shape.bytes / shape.chunks;
  if (shape.operation == CollectiveOperation::all_reduce) {
    auto rounds = reduce_scatter_rounds(group, share_blocks(chunk, group, weights, shape.alignment));
    const auto back = mirrored(rounds);
    rounds.insert(rounds.end(), back.begin(), back.end());
    return program_of_rounds(shape, rounds);
  }
  if (!weights.empty())
    throw input_error("only an all_reduce chooses what its ranks own",
                      "leave the weights out: ranks of other operations own equal blocks");
  const auto rounds = reduce_scatter_rounds(group, share_blocks(chunk, shape.ranks, {}, chunk / shape.ranks));
  return program_of_rounds(shape, shape.operation == CollectiveOperation::reduce_scatter ? rounds : mirrored(rounds));
}

CollectiveProgram direct_program(const CollectiveShape& shape, const std::vector<double>& weights) {
  std::vector<int> ranks(at(shape.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return grouped_program(shape, flat_group(ranks, GroupPattern::direct), weights);
}

CollectiveProgram ring_program(const CollectiveShape& shape, const std::vector<int>& order) {
  return grouped_program(shape, flat_group(order, GroupPattern::ring), {});
}

CollectiveProgram factored_program(const CollectiveShape& shape, const std::vector<int>& factors) {
  return grouped_program(shape, factored_group(shape.ranks, factors), {});
}

CollectiveProgram tree_program(const CollectiveShape& shape, const std::vector<int>& parents) {
  check_shape(shape);
  const std::int64_t chunk = shape.bytes / shape.chunks;
  const auto down = broadcast_rounds(parents, 0, chunk);
  if (shape.operation == CollectiveOperation::broadcast) return program_of_rounds(shape, down);
  if (shape.operation != CollectiveOperation::all_reduce)
    throw input_error("one tree makes a broadcast or an all_reduce", "grouped_program() makes the others from groups");
  auto rounds = mirrored(down);
  for (auto& round : rounds)
    for (auto& transfer : round) transfer.kind = CollectiveStepKind::reduce;
  rounds.insert(rounds.end(), down.begin(), down.end());
  return program_of_rounds(shape, rounds);
}

int chunks_that_fit(const CollectiveShape& shape, int wanted) {
  const bool blocks =
      shape.operation == CollectiveOperation::reduce_scatter || shape.operation == CollectiveOperation::all_gather;
  const std::int64_t unit = blocks ? shape.ranks : 1;
  // Aligned to what the vector itself is aligned to, where that is less.
  const std::int64_t element = std::gcd(shape.bytes / std::max<std::int64_t>(unit, 1), shape.alignment);
  for (int chunks = wanted; chunks > 1; --chunks)
    if (shape.bytes % (unit * chunks * std::max<std::int64_t>(element, 1)) == 0) return chunks;
  return 1;
}

}  // namespace motley
