// Chu and Liu's, and Edmonds', least-cost arborescence, on a dense matrix.
#include <limits>

#include "motley/base/error.hpp"
#include "motley/base/index.hpp"
#include "motley/planner/collective/tree_packing.hpp"

namespace motley {
namespace {

struct Arc {
  int from = -1, to = -1;  // of the original graph
  double cost = 0;
};

// The arcs of the tree out of `root`, in a graph whose arcs stand for original ones; n^2 per contraction.
std::vector<Arc> solve(const std::vector<std::vector<Arc>>& graph, int root) {
  const int nodes = static_cast<int>(graph.size());
  std::vector<int> best(at(nodes), -1);
  for (int to = 0; to < nodes; ++to) {
    if (to == root) continue;
    for (int from = 0; from < nodes; ++from)
      if (from != to && (best[at(to)] < 0 || graph[at(from)][at(to)].cost < graph[at(best[at(to)])][at(to)].cost))
        best[at(to)] = from;
  }
  std::vector<int> mark(at(nodes), -1), circle_of(at(nodes), -1);
  std::vector<int> circle;
  for (int start = 0; start < nodes && circle.empty(); ++start) {
    int node = start;
    while (node != root && mark[at(node)] < 0) {
      mark[at(node)] = start;
      node = best[at(node)];
    }
    if (node == root || mark[at(node)] != start) continue;
    for (int step = node; circle.empty() || step != node; step = best[at(step)]) {
      circle.push_back(step);
      circle_of[at(step)] = 0;
    }
  }
  std::vector<Arc> tree;
  if (circle.empty()) {
    for (int to = 0; to < nodes; ++to)
      if (to != root) tree.push_back(graph[at(best[at(to)])][at(to)]);
    return tree;
  }
  // The circle becomes one node; an arc into it costs what it adds to the arc that it displaces.
  std::vector<int> renamed(at(nodes), 0);
  int count = 0;
  for (int node = 0; node < nodes; ++node) renamed[at(node)] = circle_of[at(node)] == 0 ? -1 : count++;
  const int one = count++;
  for (int& name : renamed) name = name < 0 ? one : name;
  constexpr double unlimited = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Arc>> smaller(at(count), std::vector<Arc>(at(count), {-1, -1, unlimited}));
  std::vector<int> entered(at(count), -1);  // by node of the smaller graph: where its arc enters the circle
  for (int from = 0; from < nodes; ++from)
    for (int to = 0; to < nodes; ++to) {
      if (from == to || to == root || renamed[at(from)] == renamed[at(to)]) continue;
      Arc arc = graph[at(from)][at(to)];
      if (renamed[at(to)] == one) arc.cost -= graph[at(best[at(to)])][at(to)].cost;
      Arc& kept = smaller[at(renamed[at(from)])][at(renamed[at(to)])];
      if (kept.from >= 0 && arc.cost >= kept.cost) continue;
      kept = arc;
      if (renamed[at(to)] == one) entered[at(renamed[at(from)])] = to;
    }
  tree = solve(smaller, renamed[at(root)]);
  // Which node of the circle is entered from outside keeps that arc; the others keep the circle's.
  int open = -1;
  for (auto& arc : tree) {
    for (int from = 0; from < count; ++from) {
      const Arc& into = smaller[at(from)][at(one)];
      if (from != one && into.from == arc.from && into.to == arc.to) open = entered[at(from)];
    }
  }
  MOTLEY_CHECK(open >= 0);
  for (const int node : circle)
    if (node != open) tree.push_back(graph[at(best[at(node)])][at(node)]);
  return tree;
}

}  // namespace

std::vector<int> least_arborescence(const std::vector<double>& cost, int nodes, int root) {
  std::vector<int> above(at(nodes), -1);
  if (nodes < 2) return above;
  std::vector<std::vector<Arc>> graph(at(nodes), std::vector<Arc>(at(nodes)));
  for (int from = 0; from < nodes; ++from)
    for (int to = 0; to < nodes; ++to) graph[at(from)][at(to)] = {from, to, cost[at(from) * at(nodes) + at(to)]};
  for (const auto& arc : solve(graph, root)) above[at(arc.to)] = arc.from;
  return above;
}

}  // namespace motley
