#include "motley/cost/collective/collective_limit.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/index.hpp"

namespace motley {
namespace {

// Bytes as a linear function of the time near some T.
struct Bytes {
  double value = 0, slope = 0;
  Bytes operator+(const Bytes& other) const { return {value + other.value, slope + other.slope}; }
};

enum class Way { received, sent };

class Counting {
 public:
  Counting(const CollectiveNetwork& network, Way way, double trees, double bytes)
      : network_(network),
        capacity_(network.capacities()),
        below_(network.ranks_below()),
        way_(way),
        tree_bytes_(trees * bytes) {}

  // Raises `time` until every root has enough. Returns the node that was last short, or -1.
  int raise(double& time) {
    int binding = -1;
    for (;;) {
      count(time);
      double next = time;
      for (std::size_t node = 0; node < network_.nodes.size(); ++node) {
        if (network_.nodes[node].children.empty()) continue;
        const Bytes all = total(node);
        const double missing = tree_bytes_ * (network_.ranks() - 1) - all.value;
        if (!(missing > 1e-12 * tree_bytes_ * network_.ranks()) || all.slope <= 0) continue;
        if (time + missing / all.slope > next) {
          next = time + missing / all.slope;
          binding = static_cast<int>(node);
        }
      }
      if (next <= time * (1 + 1e-14)) return binding;
      time = next;
    }
  }

  // The links that bound what comes together at the node.
  std::vector<std::string> cut(int root) const {
    std::vector<std::string> links;
    for (const int child : network_.nodes[at(root)].children) collect(child, links);
    collect_above(root, links);
    return links;
  }

 private:
  double into(std::size_t node) const { return way_ == Way::received ? capacity_[node].down : capacity_[node].up; }
  double out_of(std::size_t node) const { return way_ == Way::received ? capacity_[node].up : capacity_[node].down; }

  Bytes crossing(int ranks, double capacity, double time) const {
    return {tree_bytes_ * (ranks - 1) + time * capacity, capacity};
  }
  static Bytes lesser(const Bytes& a, const Bytes& b) { return a.value <= b.value ? a : b; }

  Bytes total(std::size_t node) const {
    Bytes sum = above_[node];
    for (const int child : network_.nodes[node].children) sum = sum + branch_[at(child)];
    return sum;
  }

  void count(double time) {
    const auto& nodes = network_.nodes;
    const int all = network_.ranks();
    branch_.assign(nodes.size(), {});
    above_.assign(nodes.size(), {});
    std::vector<Bytes> inside(nodes.size());
    for (std::size_t node = nodes.size(); node-- > 0;) {
      if (below_[node] == 0) continue;
      if (nodes[node].rank >= 0)
        branch_[node] = {time * into(node), into(node)};
      else if (nodes[node].parent >= 0)
        branch_[node] = lesser(inside[node], crossing(below_[node], into(node), time));
      if (nodes[node].parent >= 0) inside[at(nodes[node].parent)] = inside[at(nodes[node].parent)] + branch_[node];
    }
    for (std::size_t node = 1; node < nodes.size(); ++node) {  // parents come before their children
      const auto parent = at(nodes[node].parent);
      if (below_[node] == all) continue;
      Bytes others = above_[parent];
      for (const int sibling : nodes[parent].children)
        if (at(sibling) != node) others = others + branch_[at(sibling)];
      above_[node] = lesser(others, crossing(all - below_[node], out_of(node), time));
    }
    inside_ = std::move(inside);
  }

  void collect(int node, std::vector<std::string>& links) const {
    if (below_[at(node)] == 0) return;
    if (network_.nodes[at(node)].rank >= 0 || inside_[at(node)].value > branch_[at(node)].value) {
      links.push_back(network_.nodes[at(node)].name + (way_ == Way::received ? " down" : " up"));
      return;
    }
    for (const int child : network_.nodes[at(node)].children) collect(child, links);
  }

  void collect_above(int node, std::vector<std::string>& links) const {
    const int parent = network_.nodes[at(node)].parent;
    if (parent < 0 || below_[at(node)] == network_.ranks()) return;
    Bytes others = above_[at(parent)];
    for (const int sibling : network_.nodes[at(parent)].children)
      if (sibling != node) others = others + branch_[at(sibling)];
    if (others.value > above_[at(node)].value) {
      links.push_back(network_.nodes[at(node)].name + (way_ == Way::received ? " up" : " down"));
      return;
    }
    for (const int sibling : network_.nodes[at(parent)].children)
      if (sibling != node) collect(sibling, links);
    collect_above(parent, links);
  }

  const CollectiveNetwork& network_;
  std::vector<LinkCapacity> capacity_;
  std::vector<int> below_;
  Way way_;
  double tree_bytes_;
  std::vector<Bytes> branch_, above_, inside_;
};

// Bytes that must cross from the ranks on one side of a cut to those on the other.
double must_cross(CollectiveOperation operation, double bytes, int from, int to, bool root_is_from) {
  const double ranks = from + to;
  switch (operation) {
    case CollectiveOperation::all_reduce: return bytes;
    case CollectiveOperation::reduce_scatter: return bytes * to / ranks;
    case CollectiveOperation::all_gather: return bytes * from / ranks;
    case CollectiveOperation::broadcast: return root_is_from ? bytes : 0;
  }
  return bytes;
}

std::string cut_name(Way way, const std::vector<std::string>& links) {
  std::string text = way == Way::received ? "received over " : "sent over ";
  for (std::size_t i = 0; i < links.size() && i < 3; ++i) text += (i ? ", " : "") + links[i];
  if (links.size() > 3) text += fmt::format(" and {} more", links.size() - 3);
  return text;
}

bool below_node(const CollectiveNetwork& network, int rank, std::size_t node) {
  for (int up = network.leaves[at(rank)]; up >= 0; up = network.nodes[at(up)].parent)
    if (at(up) == node) return true;
  return false;
}

}  // namespace

CollectiveLimit collective_limit(const CollectiveNetwork& network, CollectiveOperation operation, int root,
                                 double bytes) {
  CollectiveLimit limit;
  const int all = network.ranks();
  if (all < 2) return {0, "nothing moves"};
  const auto below = network.ranks_below();
  const auto capacity = network.capacities();
  const auto consider = [&](double seconds, const std::string& name) {
    if (seconds > limit.seconds) limit = {seconds, name};
  };
  for (std::size_t node = 1; node < network.nodes.size(); ++node) {
    const int inside = below[node], outside = all - inside;
    if (inside == 0 || outside == 0) continue;
    const bool root_inside = operation == CollectiveOperation::broadcast && below_node(network, root, node);
    consider(must_cross(operation, bytes, inside, outside, root_inside) / capacity[node].up,
             network.nodes[node].name + " up");
    consider(must_cross(operation, bytes, outside, inside, !root_inside) / capacity[node].down,
             network.nodes[node].name + " down");
  }
  const double trees = operation == CollectiveOperation::all_reduce ? 2 : 1;
  for (const Way way : {Way::received, Way::sent}) {
    if (way == Way::sent && operation == CollectiveOperation::reduce_scatter) continue;
    if (way == Way::received && trees == 1 && operation != CollectiveOperation::reduce_scatter) continue;
    Counting counting(network, way, trees, bytes);
    const int binding = counting.raise(limit.seconds);
    if (binding >= 0) limit.binding_cut = cut_name(way, counting.cut(binding));
  }
  return limit;
}

}  // namespace motley
