#include "motley/planner/collective/share_tree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/base/index.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

class TreeBuilder {
 public:
  TreeBuilder(const CollectiveNetwork& network, const std::vector<NodePolicy>& policies, ShareWay way)
      : network_(network), policies_(policies), below_(network.ranks_below()), capacity_(network.capacities()) {
    for (auto& link : capacity_) {
      if (way == ShareWay::slower) link.up = link.down = std::min(link.up, link.down);
      if (way == ShareWay::up) std::swap(link.up, link.down);
    }
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
    LinkCapacity link = parent < 0 ? LinkCapacity{} : capacity_[at(node)];
    while (network_.nodes[at(node)].rank < 0 && branches(node).size() == 1) {
      node = branches(node)[0];
      link = {std::min(link.up, capacity_[at(node)].up), std::min(link.down, capacity_[at(node)].down)};
    }
    const int index = add({.network_node = node,
                           .rank = network_.nodes[at(node)].rank,
                           .in_bytes_per_s = link.down,
                           .out_bytes_per_s = link.up},
                          parent);
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
    const std::size_t groups = ceil_div(children.size(), inner);
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<int> part;
      for (std::size_t child = g; child < children.size(); child += groups) part.push_back(children[child]);
      if (part.size() == 1) {
        build(part[0], parent);
        continue;
      }
      const int group = add({.in_bytes_per_s = unlimited, .out_bytes_per_s = unlimited}, parent);
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
      return std::pair{-nodes[at(a)].in_bytes_per_s, a} < std::pair{-nodes[at(b)].in_bytes_per_s, b};
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
      const double in = room(own.in_bytes_per_s, time), out = room(own.out_bytes_per_s, time);
      if (std::min(in, out) < -1e-12) return false;
      if (own.rank >= 0) {
        most_[node] = own.may_own ? in : 0;
        continue;
      }
      double least = 0, most = 0;
      for (const int member : own.members) {
        least += least_[at(member)];
        most += most_[at(member)];
      }
      const double merges = static_cast<double>(own.members.size()) - 1;
      if (node == 0) return least - merges <= -1 + 1e-12 && most - merges >= -1 - 1e-12;
      least_[node] = own.must_merge ? 0.0 : std::max({least - merges, -out, 1.0 - size_[node]});
      most_[node] = std::min(most - merges, in);
      if (most_[node] < least_[node] - 1e-12) return false;
    }
    return true;  // a single rank
  }

  double least_time() {
    double slowest = unlimited;
    for (const auto& node : nodes_) slowest = std::min({slowest, node.in_bytes_per_s, node.out_bytes_per_s});
    if (slowest == unlimited) return 0;
    double enough = bytes_ / slowest;
    while (!feasible(enough)) enough *= 2;
    return tighten(enough);
  }

  // After least_time(): links that carry nothing but what they must in all of that time keep it, the others get the
  // least in which they still can do their part.
  void spread(double least_time) {
    given_ = least_time;
    if (feasible(least_time)) tighten(least_time);
  }

  // z from the root downwards, after feasible().
  void distribute() {
    nodes_[0].z = -1;
    for (std::size_t node = 0; node < nodes_.size(); ++node) share_out(node);
  }

 private:
  // The least feasible time, of which the bounds stand.
  double tighten(double high) {
    double low = 0;
    for (int step = 0; step < 60 && high - low > 1e-13 * high; ++step) {
      const double middle = (low + high) / 2;
      (feasible(middle) ? high : low) = middle;
    }
    feasible(high);
    return high;
  }

  // Vectors that a link carries in the time beyond the one that it must.
  double room(double bytes_per_s, double time) const {
    if (bytes_per_s == unlimited) return unlimited;
    const double given = given_ * bytes_per_s / bytes_ - 1;
    return given < 1e-9 ? given : time * bytes_per_s / bytes_ - 1;
  }

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
  double given_ = unlimited;  // to links that need all of it
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
                     ShareWay way, double bytes) {
  ShareTree tree{.nodes = TreeBuilder(network, policies, way).nodes};
  Flow flow(tree.nodes, bytes);
  tree.steady_s = flow.least_time();
  if (rule == ShareRule::spread) flow.spread(tree.steady_s);
  flow.distribute();
  choose(tree.nodes, rule);
  rounds_below(tree, 0, tree.in_step);
  return tree;
}

CollectiveGroup group_of(const ShareTree& tree) { return group_below(tree, 0); }

}  // namespace motley
