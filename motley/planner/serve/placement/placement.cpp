#include "motley/planner/serve/placement/placement.hpp"

#include <algorithm>
#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr int source = 0, sink = 1;
constexpr double rounding = 1e-12;  // of sums over nodes: the bound is loosened by it

double total_rate(const PlacementProblem& problem) {
  double sum = 0;
  for (const auto& node : problem.nodes)
    if (!node.tokens_per_s.empty()) sum += *std::max_element(node.tokens_per_s.begin(), node.tokens_per_s.end());
  return std::max(sum, 1e-30);
}

// Layer tokens per second of all devices, where no node passes on more than `most`.
double layer_tokens(const std::vector<BoundItem>& items, double most) {
  double sum = 0;
  for (const auto& item : items) {
    double best = 0;
    for (const auto& choice : item.choices)
      for (std::size_t k = 1; k <= choice.tokens_per_s.size(); ++k)
        best = std::max(best, static_cast<double>(k) * std::min(most, choice.tokens_per_s[k - 1]) / choice.devices);
    sum += item.devices * best;
  }
  return sum;
}

std::vector<BoundItem> items_of(const PlacementProblem& problem) {
  std::vector<BoundItem> items;
  for (const auto& node : problem.nodes) items.push_back({1, {{node.tokens_per_s, 1}}});
  return items;
}

double compute_bound(std::int64_t layers, const std::vector<BoundItem>& items) {
  return layer_tokens(items, std::numeric_limits<double>::infinity()) / static_cast<double>(layers);
}

}  // namespace

bool PlacementProblem::fits(int node, LayerRange range) const {
  if (range.size() == 0) return true;
  if (range.first < 0 || range.end > layers || range.size() < 0) return false;
  return range.size() <= nodes[node].most((range.first == 0 ? 1 : 0) + (range.end == layers ? 2 : 0));
}

PlacementFlow::PlacementFlow(const PlacementProblem& problem)
    : problem_(problem),
      placement_(problem.nodes.size()),
      network_(static_cast<int>(2 + 2 * problem.nodes.size()), source, sink, total_rate(problem) * 0x1p-44),
      edges_(problem.nodes.size()),
      begin_at_(problem.layers + 1),
      end_at_(problem.layers + 1),
      holding_(problem.layers) {
  for (int node = 0; node < std::ssize(problem.nodes); ++node)
    node_edge_.push_back(network_.add_edge(enters(node), leaves(node), 0));
}

double PlacementFlow::link(int from, int to) const {
  return problem_.link[problem_.nodes[from].place][problem_.nodes[to].place];
}

template <class Visit>
void PlacementFlow::each_successor(const LayerRange& range, Visit visit) const {
  if (range.end == problem_.layers) return;
  for (const int other : problem_.handover == Handover::exact ? begin_at_[range.end] : holding_[range.end])
    visit(other);
}

template <class Visit>
void PlacementFlow::each_predecessor(const LayerRange& range, Visit visit) const {
  const std::int64_t last = problem_.handover == Handover::exact ? range.first + 1 : range.end;
  for (std::int64_t next = std::max<std::int64_t>(range.first, 1); next < last; ++next)
    for (const int other : end_at_[next]) visit(other);
}

void PlacementFlow::connect(int node) {
  const LayerRange& range = placement_[node];
  const auto add = [&](int from, int to, double tokens_per_s) { return network_.add_edge(from, to, tokens_per_s); };
  const auto add_between = [&](int from, int to) {
    const int edge = add(leaves(from), enters(to), link(from, to));
    edges_[from].push_back(edge);
    edges_[to].push_back(edge);
  };
  each_successor(range, [&](int other) { add_between(node, other); });
  each_predecessor(range, [&](int other) { add_between(other, node); });
  if (range.first == 0) edges_[node].push_back(add(source, enters(node), FlowNetwork::unlimited));
  if (range.end == problem_.layers) edges_[node].push_back(add(leaves(node), sink, FlowNetwork::unlimited));
  begin_at_[range.first].push_back(node);
  end_at_[range.end].push_back(node);
  if (problem_.handover == Handover::partial)
    for (std::int64_t layer = range.first; layer < range.end; ++layer) holding_[layer].push_back(node);
}

void PlacementFlow::disconnect(int node) {
  const LayerRange& range = placement_[node];
  for (const int edge : edges_[node]) {
    for (const int vertex : {network_.from(edge), network_.to(edge)})
      if (const int other = vertex / 2 - 1; vertex >= 2 && other != node) std::erase(edges_[other], edge);
    network_.remove_edge(edge);
  }
  edges_[node].clear();
  std::erase(begin_at_[range.first], node);
  std::erase(end_at_[range.end], node);
  if (problem_.handover == Handover::partial)
    for (std::int64_t layer = range.first; layer < range.end; ++layer) std::erase(holding_[layer], node);
}

void PlacementFlow::place(int node, LayerRange range) {
  if (range == placement_[node]) return;
  MOTLEY_CHECK(problem_.fits(node, range));
  if (placement_[node].size() > 0) disconnect(node);
  placement_[node] = range;
  network_.set_capacity(node_edge_[node], problem_.nodes[node].rate(range.size()));
  if (range.size() > 0) connect(node);
}

void PlacementFlow::place(const Placement& placement) {
  constexpr std::int64_t few = 4;
  std::int64_t changes = 0;
  for (std::size_t node = 0; node < placement.size(); ++node) changes += placement[node] != placement_[node];
  if (changes > few) network_.clear_flow();
  for (int node = 0; node < std::ssize(placement); ++node) place(node, placement[node]);
}

std::vector<int> PlacementFlow::limiting_nodes() const {
  const std::vector<bool> reached = network_.source_side();
  std::vector<int> nodes;
  for (int node = 0; node < std::ssize(placement_); ++node)
    if (placement_[node].size() > 0 && reached[enters(node)] && !reached[leaves(node)]) nodes.push_back(node);
  return nodes;
}

std::vector<PlacementFlow::Way> PlacementFlow::ways() const {
  std::vector<Way> ways;
  for (const auto& path : network_.paths()) {
    Way way{.nodes = {}, .tokens_per_s = path.flow};
    for (const int edge : path.edges)
      if (network_.to(edge) != sink && network_.to(edge) % 2 == 0) way.nodes.push_back(network_.to(edge) / 2 - 1);
    ways.push_back(std::move(way));
  }
  return ways;
}

double placement_flow(const PlacementProblem& problem, const Placement& placement) {
  PlacementFlow flow(problem);
  flow.place(placement);
  return flow.maximise();
}

double compute_bound(const PlacementProblem& problem) { return compute_bound(problem.layers, items_of(problem)); }

double placement_bound(const PlacementProblem& problem) { return placement_bound(problem.layers, items_of(problem)); }

double placement_bound(std::int64_t layers, const std::vector<BoundItem>& items) {
  // The condition at the smallest flow of all: can the layers be held?
  double held = 0;
  for (const auto& item : items) {
    double most = 0;
    for (const auto& choice : item.choices)
      most = std::max(most, static_cast<double>(choice.tokens_per_s.size()) / choice.devices);
    held += item.devices * most;
  }
  if (held < static_cast<double>(layers)) return 0;
  double low = 0, high = compute_bound(layers, items);  // what holds at some flow holds at all lesser ones, too
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    const double needed = static_cast<double>(layers) * middle * (1 - rounding);
    (layer_tokens(items, middle) >= needed ? low : high) = middle;
  }
}

}  // namespace motley
