#include "motley/planner/collective/share_tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class TreeBuilder {
 public:
  TreeBuilder(const CollectiveNetwork& network, const std::vector<NodePolicy>& policies)
      : network_(network), policies_(policies), below_(network.ranks_below()), capacity_(network.capacities()) {
    build(top(), -1);
  }

  std::vector<ShareNode> nodes;

 private:
  // Nodes with a single branch that has ranks are passed over; their links count with the branch's own.
  int top() const {
    int node = 0;
    while (network_.nodes[at(node)].rank < 0 && branches(node).size() == 1) node = branches(node)[0];
    return node;
  }

  double slower_way(int node) const { return std::min(capacity_[at(node)].up, capacity_[at(node)].down); }

  std::vector<int> branches(int node) const {
    std::vector<int> used;
    for (const int child : network_.nodes[at(node)].children)
      if (below_[at(child)] > 0) used.push_back(child);
    return used;
  }

  int add(ShareNode node, int parent) {
    const int index = static_cast<int>(nodes.size());
    nodes.push_back(std::move(node));
    if (parent >= 0) nodes[at(parent)].members.push_back(index);
    return index;
  }

  void build(int node, int parent) {
    double link = parent < 0 ? unlimited : slower_way(node);
    while (network_.nodes[at(node)].rank < 0 && branches(node).size() == 1) {
      node = branches(node)[0];
      link = std::min(link, slower_way(node));
    }
    const int index = add({.network_node = node, .rank = network_.nodes[at(node)].rank, .bytes_per_s = link}, parent);
    if (network_.nodes[at(node)].rank >= 0) return;
    const NodePolicy& policy = policies_[at(node)];
    nodes[at(index)].pattern = policy.pattern;
    place(index, branches(node), policy.factors, policy.factors.size());
    limit_owners(index, policy.owners);
    if (policy.pattern == GroupPattern::ring)
      for (const int member : nodes[at(index)].members) nodes[at(member)].must_merge = true;
  }

  // The outermost group first: factors from the back.
  void place(int parent, const std::vector<int>& children, const std::vector<int>& factors, std::size_t level) {
    std::size_t inner = 1;  // children per group of the level below
    for (std::size_t i = 0; i + 1 < level; ++i) inner *= at(factors[i]);
    if (level <= 1 || inner >= children.size()) {
      for (const int child : children) build(child, parent);
      return;
    }
    // Spread like a deal of cards: like branches stand side by side, and what a group's members hold of a vector in
    // rank order stays in one piece.
    const std::size_t groups = (children.size() + inner - 1) / inner;
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<int> part;
      for (std::size_t child = g; child < children.size(); child += groups) part.push_back(children[child]);
      if (part.size() == 1) {
        build(part[0], parent);
        continue;
      }
      const int group = add({.bytes_per_s = unlimited}, parent);
      place(group, part, factors, level - 1);
    }
  }

  void limit_owners(int index, int owners) {
    if (owners <= 0) return;
    std::vector<int> ranks, open = {index};
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      for (const int member : nodes[at(node)].members) {
        if (nodes[at(member)].rank >= 0)
          ranks.push_back(member);
        else if (nodes[at(member)].network_node < 0)
          open.push_back(member);
      }
    }
    std::sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return std::pair{-nodes[at(a)].bytes_per_s, a} < std::pair{-nodes[at(b)].bytes_per_s, b};
    });
    for (std::size_t i = at(owners); i < ranks.size(); ++i) nodes[at(ranks[i])].may_own = false;
  }

  const CollectiveNetwork& network_;
  const std::vector<NodePolicy>& policies_;
  std::vector<int> below_;
  std::vector<LinkCapacity> capacity_;
};

// Bounds of z in a given time, from the ranks upwards.
class Flow {
 public:
  Flow(std::vector<ShareNode>& nodes, double bytes) : nodes_(nodes), bytes_(bytes), size_(nodes.size(), 0) {
    for (std::size_t node = nodes.size(); node-- > 0;) {
      if (nodes[node].rank >= 0) size_[node] = 1;
      for (const int member : nodes[node].members) size_[node] += size_[at(member)];
    }
  }

  bool feasible(double time) {
    least_.assign(nodes_.size(), 0);
    most_.assign(nodes_.size(), 0);
    for (std::size_t node = nodes_.size(); node-- > 0;) {
      const auto& own = nodes_[node];
      const double room = own.bytes_per_s == unlimited ? unlimited : time * own.bytes_per_s / bytes_ - 1;
      if (own.rank >= 0) {
        most_[node] = own.may_own ? room : 0;
        if (room < -1e-12) return false;
        continue;
      }
      double least = 0, most = 0;
      for (const int member : own.members) {
        least += least_[at(member)];
        most += most_[at(member)];
      }
      const double merges = static_cast<double>(own.members.size()) - 1;
      if (node == 0) return least - merges <= -1 + 1e-12 && most - merges >= -1 - 1e-12;
      least_[node] = own.must_merge ? 0.0 : std::max({least - merges, -room, 1.0 - size_[node]});
      most_[node] = std::min(most - merges, room);
      if (most_[node] < least_[node] - 1e-12) return false;
    }
    return true;  // a single rank
  }

  double least_time() {
    double slowest = unlimited;
    for (const auto& node : nodes_) slowest = std::min(slowest, node.bytes_per_s);
    if (slowest == unlimited) return 0;
    double low = 0, high = bytes_ / slowest;
    while (!feasible(high)) high *= 2;
    for (int step = 0; step < 60 && high - low > 1e-13 * high; ++step) {
      const double middle = (low + high) / 2;
      (feasible(middle) ? high : low) = middle;
    }
    feasible(high);
    return high;
  }

  // z from the root downwards, after feasible().
  void distribute() {
    nodes_[0].z = -1;
    for (std::size_t node = 0; node < nodes_.size(); ++node) share_out(node);
  }

 private:
  void share_out(std::size_t node) {
    const auto& members = nodes_[node].members;
    if (members.empty()) return;
    const double wanted = static_cast<double>(members.size()) - 1 + nodes_[node].z;
    // Handing out partial sums only where taking them in is not possible.
    std::vector<double> low, high;
    double floor = 0;
    for (const int member : members) {
      low.push_back(std::max(least_[at(member)], std::min(0.0, most_[at(member)])));
      high.push_back(std::min(most_[at(member)], wanted + static_cast<double>(size_[0])));
      floor += low.back();
    }
    if (floor > wanted) {
      high = low;
      for (std::size_t m = 0; m < members.size(); ++m) low[m] = least_[at(members[m])];
    }
    const double all_low = std::accumulate(low.begin(), low.end(), 0.0);
    const double all_high = std::accumulate(high.begin(), high.end(), 0.0);
    const double part = all_high > all_low ? std::clamp((wanted - all_low) / (all_high - all_low), 0.0, 1.0) : 0.0;
    for (std::size_t m = 0; m < members.size(); ++m) nodes_[at(members[m])].z = low[m] + part * (high[m] - low[m]);
  }

  std::vector<ShareNode>& nodes_;
  double bytes_;
  std::vector<int> size_;
  std::vector<double> least_, most_;
};

void choose_in_proportion(std::vector<ShareNode>& nodes, const ShareNode& node, double partial_sums) {
  double taken = 0;
  for (const int member : node.members) taken += std::max(0.0, nodes[at(member)].z);
  const double equal = 1.0 / static_cast<double>(node.members.size());
  for (const int member : node.members) {
    double& chosen = nodes[at(member)].chosen;
    chosen = taken > 1e-9 * partial_sums ? std::max(0.0, nodes[at(member)].z) / taken : equal;
    if (std::abs(chosen - equal) < 1e-9) chosen = equal;
    if (chosen < 1e-9) chosen = 0;
  }
}

// How often each member is chosen, and how often a node hands on what its members bring.
void choose(std::vector<ShareNode>& nodes, ShareRule rule) {
  std::vector<double> brought(nodes.size(), 1);  // partial sums of a range that a node hands out, on average
  for (std::size_t node = nodes.size(); node-- > 0;) {
    auto& own = nodes[node];
    if (own.members.empty()) continue;
    double partial_sums = 0;
    for (const int member : own.members) partial_sums += brought[at(member)];
    if (rule == ShareRule::equal || own.pattern == GroupPattern::ring) {
      for (const int member : own.members) nodes[at(member)].chosen = 1.0 / static_cast<double>(own.members.size());
    } else {
      choose_in_proportion(nodes, own, partial_sums);
      if (node > 0 && own.z < -1e-9) own.passed = std::clamp(-own.z / (partial_sums - 1), 0.0, 1.0);
    }
    brought[node] = 1 + own.passed * (partial_sums - 1);
  }
}

// A range and who holds partial sums of it, one after the other.
struct Held {
  std::int64_t first = 0, last = 0;  // units
  std::vector<int> holders;
};

class RoundBuilder {
 public:
  RoundBuilder(const ShareTree& tree, std::int64_t bytes, std::int64_t alignment, std::size_t most_transfers)
      : tree_(tree), bytes_(bytes), alignment_(alignment), most_transfers_(most_transfers) {
    (void)held(0);
  }

  std::vector<CollectiveRound> rounds;
  std::size_t transfers = 0;

 private:
  struct Branch {
    std::vector<Held> pieces;
    std::size_t rounds = 0;  // used up
  };

  Branch held(int index) {
    const auto& node = tree_.nodes[at(index)];
    const std::int64_t units = (bytes_ + alignment_ - 1) / alignment_;
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
    const auto upto = [&](double share) {
      before += share;
      const std::int64_t border = first + std::llround(before * static_cast<double>(length));
      return std::min(last, std::max(from, border));
    };
    if (node.passed > 0) {
      const std::int64_t border = upto(node.passed);
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
      const std::int64_t border = m == last_chosen ? last : upto(chosen);
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

// Rounds that a node's reduction takes; false in `in_step` where some member waits for others.
int rounds_below(const ShareTree& tree, int index, bool& in_step) {
  const auto& node = tree.nodes[at(index)];
  if (node.rank >= 0) return 0;
  if (node.passed > 0) in_step = false;
  int most = 0, least = std::numeric_limits<int>::max();
  for (const int member : node.members) {
    const int rounds = rounds_below(tree, member, in_step);
    most = std::max(most, rounds);
    least = std::min(least, rounds);
  }
  if (most != least) in_step = false;
  return most + (node.pattern == GroupPattern::ring ? static_cast<int>(node.members.size()) - 1 : 1);
}

CollectiveGroup group_below(const ShareTree& tree, int index) {
  const auto& node = tree.nodes[at(index)];
  CollectiveGroup group{.rank = node.rank, .pattern = node.pattern, .members = {}};
  for (const int member : node.members) group.members.push_back(group_below(tree, member));
  return group;
}

}  // namespace

ShareTree share_tree(const CollectiveNetwork& network, const std::vector<NodePolicy>& policies, ShareRule rule,
                     double bytes) {
  ShareTree tree{.nodes = TreeBuilder(network, policies).nodes};
  Flow flow(tree.nodes, bytes);
  tree.steady_s = flow.least_time();
  flow.distribute();
  choose(tree.nodes, rule);
  rounds_below(tree, 0, tree.in_step);
  return tree;
}

std::optional<std::vector<CollectiveRound>> share_rounds(const ShareTree& tree, std::int64_t bytes,
                                                         std::int64_t alignment, std::size_t most_transfers) {
  RoundBuilder builder(tree, bytes, alignment, most_transfers);
  if (builder.transfers > most_transfers) return std::nullopt;
  std::size_t ranks = 0;
  for (const auto& node : tree.nodes) ranks = std::max(ranks, static_cast<std::size_t>(node.rank + 1));
  for (auto& round : builder.rounds) join_neighbours(round, ranks);
  return std::move(builder.rounds);
}

CollectiveGroup group_of(const ShareTree& tree) { return group_below(tree, 0); }

}  // namespace motley
