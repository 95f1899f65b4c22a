// A share tree as rounds of transfers.
#include <algorithm>
#include <cmath>

#include "motley/base/index.hpp"
#include "motley/base/rounding.hpp"
#include "motley/planner/collective/share_tree.hpp"

namespace motley {
namespace {

// A range and who holds partial sums of it, one after the other.
struct Held {
  std::int64_t first = 0, last = 0;  // units
  std::vector<int> holders;
};

class RoundBuilder {
 public:
  RoundBuilder(const ShareTree& tree, std::int64_t bytes, std::int64_t alignment, std::size_t most_transfers)
      : tree_(tree), bytes_(bytes), alignment_(alignment), most_transfers_(most_transfers) {
    for (const auto& piece : held(0).pieces) {
      const std::int64_t end = std::min(bytes_, piece.last * alignment_);
      if (piece.first * alignment_ < end) owned.push_back({piece.holders.front(), piece.first * alignment_, end});
    }
  }

  std::vector<CollectiveRound> rounds;
  std::vector<CollectiveBlock> owned;  // in the order of the vector
  std::size_t transfers = 0;

 private:
  struct Branch {
    std::vector<Held> pieces;
    std::size_t rounds = 0;  // used up
  };

  Branch held(int index) {
    const auto& node = tree_.nodes[at(index)];
    const std::int64_t units = ceil_div(bytes_, alignment_);
    if (node.rank >= 0) return {{{0, units, {node.rank}}}, 0};
    std::vector<Branch> branches;
    std::size_t before = 0;
    std::vector<std::int64_t> borders;
    for (const int member : node.members) {
      branches.push_back(held(member));
      before = std::max(before, branches.back().rounds);
      for (const auto& piece : branches.back().pieces) borders.push_back(piece.last);
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    Branch result{{}, before + (node.pattern == GroupPattern::ring ? node.members.size() - 1 : 1)};
    if (rounds.size() < result.rounds) rounds.resize(result.rounds);
    std::vector<std::size_t> places(branches.size(), 0);
    std::int64_t first = 0;
    for (const std::int64_t last : borders) {
      if (transfers > most_transfers_) break;
      std::vector<const std::vector<int>*> holders;
      for (std::size_t m = 0; m < branches.size(); ++m) {
        while (branches[m].pieces[places[m]].last <= first) ++places[m];
        holders.push_back(&branches[m].pieces[places[m]].holders);
      }
      split(node, holders, first, last, before, result.pieces);
      first = last;
    }
    return result;
  }

  void split(const ShareNode& node, const std::vector<const std::vector<int>*>& holders, std::int64_t first,
             std::int64_t last, std::size_t round, std::vector<Held>& pieces) {
    const std::int64_t length = last - first;
    double before = 0;
    std::int64_t from = first;
    const auto until = [&](double share) {
      before += share;
      const std::int64_t border = first + std::llround(before * static_cast<double>(length));
      return std::min(last, std::max(from, border));
    };
    if (node.passed > 0) {
      const std::int64_t border = until(node.passed);
      if (border > from) {
        Held piece{from, border, {}};
        for (const auto* list : holders) piece.holders.insert(piece.holders.end(), list->begin(), list->end());
        pieces.push_back(std::move(piece));
      }
      from = border;
    }
    std::size_t last_chosen = 0;
    for (std::size_t m = 0; m < node.members.size(); ++m)
      if (tree_.nodes[at(node.members[m])].chosen > 0) last_chosen = m;
    for (std::size_t m = 0; m < node.members.size() && from < last; ++m) {
      const double chosen = tree_.nodes[at(node.members[m])].chosen * (1 - node.passed);
      const std::int64_t border = m == last_chosen ? last : until(chosen);
      if (border > from) {
        merge(node, holders, m, from, border, round);
        pieces.push_back({from, border, {holder_in(*holders[m], from)}});
      }
      from = border;
    }
  }

  // Of several holders in the chosen member each has its turn.
  static int holder_in(const std::vector<int>& holders, std::int64_t first) {
    return holders[static_cast<std::size_t>(first) % holders.size()];
  }

  void merge(const ShareNode& node, const std::vector<const std::vector<int>*>& holders, std::size_t chosen,
             std::int64_t first, std::int64_t last, std::size_t round) {
    if (node.pattern == GroupPattern::ring) {
      const std::size_t members = holders.size();
      for (std::size_t step = 1; step < members; ++step)
        transfer(round + step - 1, holders[(chosen + step) % members]->front(),
                 holders[(chosen + step + 1) % members]->front(), first, last);
      return;
    }
    const int target = holder_in(*holders[chosen], first);
    for (const auto* list : holders)
      for (const int holder : *list)
        if (holder != target) transfer(round, holder, target, first, last);
  }

  void transfer(std::size_t round, int from, int to, std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * alignment_, end = std::min(bytes_, last * alignment_);
    if (begin >= end) return;
    rounds[round].push_back({from, to, begin, end, CollectiveStepKind::reduce});
    ++transfers;
  }

  const ShareTree& tree_;
  std::int64_t bytes_, alignment_;
  std::size_t most_transfers_;
};

// Transfers of one pair of ranks side by side; neighbouring ranges of theirs become one. They are in the order of
// their ranges before.
void join_neighbours(CollectiveRound& round, std::size_t ranks) {
  CollectiveRound sorted(round.size());
  for (int CollectiveTransfer::*key : {&CollectiveTransfer::to, &CollectiveTransfer::from}) {
    std::vector<std::size_t> place(ranks + 1, 0);
    for (const auto& transfer : round) ++place[at(transfer.*key) + 1];
    for (std::size_t rank = 0; rank < ranks; ++rank) place[rank + 1] += place[rank];
    for (const auto& transfer : round) sorted[place[at(transfer.*key)]++] = transfer;
    std::swap(round, sorted);
  }
  std::size_t kept = 0;
  for (std::size_t i = 1; i < round.size(); ++i) {
    auto& last = round[kept];
    if (last.from == round[i].from && last.to == round[i].to && last.last == round[i].first)
      last.last = round[i].last;
    else
      round[++kept] = round[i];
  }
  if (!round.empty()) round.resize(kept + 1);
}

std::size_t ranks_of(const ShareTree& tree) {
  std::size_t ranks = 0;
  for (const auto& node : tree.nodes) ranks = std::max(ranks, static_cast<std::size_t>(node.rank + 1));
  return ranks;
}

// From those in whom the sum came together to those from whom it spreads.
CollectiveRound handed_over(const std::vector<CollectiveBlock>& from, const std::vector<CollectiveBlock>& to) {
  CollectiveRound round;
  for (std::size_t a = 0, b = 0; a < from.size() && b < to.size();) {
    const std::int64_t first = std::max(from[a].first, to[b].first), last = std::min(from[a].last, to[b].last);
    if (from[a].owner != to[b].owner && first < last)
      round.push_back({from[a].owner, to[b].owner, first, last, CollectiveStepKind::recv});
    from[a].last < to[b].last ? ++a : ++b;
  }
  return round;
}

// No rank is sent a sum that came together in itself.
CollectiveRound without_owners(const CollectiveRound& round, const std::vector<CollectiveBlock>& owned) {
  CollectiveRound kept;
  for (const auto& transfer : round) {
    std::int64_t first = transfer.first;
    auto block = std::upper_bound(owned.begin(), owned.end(), first,
                                  [](std::int64_t place, const CollectiveBlock& other) { return place < other.last; });
    for (; block != owned.end() && block->first < transfer.last; ++block) {
      if (block->owner != transfer.to) continue;
      if (first < block->first) kept.push_back({transfer.from, transfer.to, first, block->first, transfer.kind});
      first = std::min(block->last, transfer.last);
    }
    if (first < transfer.last) kept.push_back({transfer.from, transfer.to, first, transfer.last, transfer.kind});
  }
  return kept;
}

}  // namespace

std::optional<std::vector<CollectiveRound>> share_rounds(const ShareTree& tree, std::int64_t bytes,
                                                         std::int64_t alignment, std::size_t most_transfers) {
  RoundBuilder builder(tree, bytes, alignment, most_transfers);
  if (builder.transfers > most_transfers) return std::nullopt;
  for (auto& round : builder.rounds) join_neighbours(round, ranks_of(tree));
  return std::move(builder.rounds);
}

std::optional<std::vector<CollectiveRound>> share_rounds(const ShareTree& reducing, const ShareTree& spreading,
                                                         std::int64_t bytes, std::int64_t alignment,
                                                         std::size_t most_transfers) {
  RoundBuilder up(reducing, bytes, alignment, most_transfers), down(spreading, bytes, alignment, most_transfers);
  if (up.transfers + down.transfers > most_transfers) return std::nullopt;
  auto rounds = std::move(up.rounds);
  rounds.push_back(handed_over(up.owned, down.owned));
  for (auto& round : mirrored(down.rounds)) rounds.push_back(without_owners(round, up.owned));
  for (auto& round : rounds) join_neighbours(round, ranks_of(reducing));
  return rounds;
}

}  // namespace motley
