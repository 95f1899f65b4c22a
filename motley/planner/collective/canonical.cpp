#include "motley/planner/collective/canonical.hpp"

#include <algorithm>

#include "motley/base/index.hpp"

namespace motley {
namespace {

class Canonical {
 public:
  explicit Canonical(const CollectiveNetwork& network) : network_(network), marks_(network.nodes.size()) {
    for (std::size_t node = network.nodes.size(); node-- > 0;) mark(node);
    result_.network.nodes.reserve(network.nodes.size());
    place(0, -1);
    result_.network.ports = network.ports;
  }

  CanonicalNetwork result() && { return std::move(result_); }

 private:
  void mark_port(std::vector<double>& mark, int port) const {
    if (port < 0) {
      mark.push_back(-1);
      return;
    }
    const auto& own = network_.ports[at(port)];
    mark.insert(mark.end(),
                {own.bytes_per_s, own.latency_s, static_cast<double>(own.incast_threshold), own.incast_s_per_byte});
  }

  // What a branch is, as numbers: its link, then its ranks and branches in their sorted order.
  void mark(std::size_t node) {
    const auto& own = network_.nodes[node];
    auto& mark = marks_[node];
    mark_port(mark, own.up);
    mark_port(mark, own.down);
    if (own.rank >= 0) {
      const auto& reduction = network_.reduction[at(own.rank)];
      mark.insert(mark.end(), {1, reduction.add_s_per_byte, reduction.access_s_per_byte});
      return;
    }
    mark.insert(mark.end(), {0, static_cast<double>(own.children.size())});
    for (const int port : own.mesh) mark_port(mark, port);
    for (const int child : sorted(own)) mark.insert(mark.end(), marks_[at(child)].begin(), marks_[at(child)].end());
  }

  std::vector<int> sorted(const CollectiveNode& node) const {
    std::vector<int> children = node.children;
    if (node.mesh.empty())
      std::stable_sort(children.begin(), children.end(),
                       [&](int a, int b) { return marks_[at(a)] > marks_[at(b)]; });  // fast ones first
    return children;
  }

  int place(int node, int parent) {
    const auto& own = network_.nodes[at(node)];
    const int index = static_cast<int>(result_.network.nodes.size());
    result_.network.nodes.push_back(
        {.name = own.name, .parent = parent, .up = own.up, .down = own.down, .mesh = own.mesh});
    if (own.rank >= 0) {
      result_.network.nodes[at(index)].rank = result_.network.ranks();
      result_.rank_of.push_back(own.rank);
      result_.network.leaves.push_back(index);
      result_.network.reduction.push_back(network_.reduction[at(own.rank)]);
      return index;
    }
    for (const int child : sorted(own)) {
      const int placed = place(child, index);
      result_.network.nodes[at(index)].children.push_back(placed);
    }
    return index;
  }

  const CollectiveNetwork& network_;
  std::vector<std::vector<double>> marks_;
  CanonicalNetwork result_;
};

}  // namespace

CanonicalNetwork canonical_network(const CollectiveNetwork& network) { return Canonical(network).result(); }

}  // namespace motley
