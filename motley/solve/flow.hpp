// Maximum flow that is kept while edges come, go and change.
//
// A search changes a few edges thousands of times and asks for the value after each change. So the flow stays: taking
// capacity away reroutes what no longer fits (or takes it back where nothing can carry it), and maximise() only adds
// what is missing.
//
// Capacities are real numbers, rounded to whole multiples of `unit`; inside, everything is counted in units. Hence a
// flow that was repaired a million times has exactly the value of one computed from scratch, and the capacities of a
// minimum cut sum to it.
//
// Dinic's blocking flows (1970): O(V^2 E) per call at worst, a handful of breadth-first passes in practice.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace motley {

struct FlowPath {
  std::vector<int> edges;  // from source to sink
  double flow = 0;
};

class FlowNetwork {
 public:
  static constexpr double unlimited = std::numeric_limits<double>::infinity();

  // Vertices 0 .. vertices - 1. `unit` > 0: about 1e-12 of the largest flow is safe and fine; flows above 2^50 units
  // count as unlimited.
  FlowNetwork(int vertices, int source, int sink, double unit);

  // Ids are reused after remove_edge. The capacity is at least 0.
  int add_edge(int from, int to, double capacity);
  void remove_edge(int edge);
  void set_capacity(int edge, double capacity);

  // No flow on any edge. Before many changes at once that is quicker than repairing after each.
  void clear_flow();

  // The value of a maximum flow. Between calls the flow is valid but may be too small.
  double maximise();

  double value() const { return to_real(value_); }
  double flow(int edge) const { return to_real(residual_[2 * edge + 1]); }
  double capacity(int edge) const;
  int from(int edge) const { return head_[2 * edge + 1]; }
  int to(int edge) const { return head_[2 * edge]; }

  // After maximise(): whether the source still reaches the vertex. Edges from such a vertex to another are the minimum
  // cut nearest the source.
  std::vector<bool> source_side() const;
  std::vector<int> min_cut() const;

  // Paths from source to sink whose flows sum to the value, the widest first; no more than there are edges.
  std::vector<FlowPath> paths() const;

 private:
  using Units = std::int64_t;

  Units to_units(double amount) const;
  double to_real(Units units) const;
  void attach(int arc, int tail);
  void detach(int arc);
  Units augment(int from, int to, Units limit);
  bool level_vertices(int from, int to);
  Units push(int vertex, int target, Units limit);
  void take_back(int edge, Units excess);
  FlowPath widest_path(const std::vector<Units>& left) const;

  int source_, sink_;
  double unit_;
  Units value_ = 0;

  // Edge e is arc 2e and its opposite 2e + 1, whose residual capacity is the flow.
  std::vector<int> head_;
  std::vector<int> place_;  // of the arc in its tail's list; -1: the edge is not in use
  std::vector<Units> residual_;
  std::vector<int> free_edges_;
  std::vector<std::vector<int>> arcs_;  // of every vertex

  std::vector<int> level_, queue_;
  std::vector<std::size_t> next_arc_;
};

}  // namespace motley
