// Which layers each node holds, so that the flow of tokens through any chain of nodes is largest.
//
// A node is a device or a tensor-parallel group. It holds one contiguous range of layers [s, e) and passes on at most
// rate(e - s) tokens per second. Any chain of nodes that covers the layers is a way for tokens; how much all ways
// together carry is a maximum flow. After Helix (ASPLOS 2025, arXiv 2406.01566); docs/concepts/planner-placement.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "motley/planner/serve/pipeline/serve_problem.hpp"
#include "motley/solve/chain_dp.hpp"
#include "motley/solve/flow.hpp"

namespace motley {

struct PlacementNode {
  // Tokens per second while holding 1, 2, ... layers; the list ends where no more fit.
  std::vector<double> tokens_per_s;
  // Most layers by what else the node holds: bits 1 first (embedding), 2 last (head), as ChainPosition.
  std::int64_t most_layers[4] = {};
  int place = 0;  // nodes of one place have alike links

  double rate(std::int64_t layers) const { return layers > 0 ? tokens_per_s[layers - 1] : 0; }
  std::int64_t most(int ends) const { return std::min<std::int64_t>(most_layers[ends], std::ssize(tokens_per_s)); }
};

struct PlacementProblem {
  std::int64_t layers = 0;
  std::vector<PlacementNode> nodes;
  std::vector<std::vector<double>> link;  // tokens per second from place to place; the diagonal: inside it
  Handover handover = Handover::exact;

  bool fits(int node, LayerRange range) const;
};

using Placement = std::vector<LayerRange>;  // of every node; empty range: idle

// The flow of a placement, kept up to date while nodes change their ranges.
class PlacementFlow {
 public:
  explicit PlacementFlow(const PlacementProblem& problem);  // all idle; the problem must outlive it

  void place(int node, LayerRange range);  // which must fit
  void place(const Placement& placement);  // all of them
  double maximise() { return network_.maximise(); }

  const Placement& placement() const { return placement_; }
  // After maximise(): nodes whose own rate limits the flow.
  std::vector<int> limiting_nodes() const;

  struct Way {
    std::vector<int> nodes;
    double tokens_per_s = 0;
  };
  std::vector<Way> ways() const;  // paths of the flow, the widest first

 private:
  int enters(int node) const { return 2 + 2 * node; }
  int leaves(int node) const { return 3 + 2 * node; }
  void connect(int node);
  void disconnect(int node);
  template <class Visit>
  void each_successor(const LayerRange& range, Visit visit) const;
  template <class Visit>
  void each_predecessor(const LayerRange& range, Visit visit) const;
  double link(int from, int to) const;

  const PlacementProblem& problem_;
  Placement placement_;
  FlowNetwork network_;
  std::vector<int> node_edge_;
  std::vector<std::vector<int>> edges_;              // of every node, both directions
  std::vector<std::vector<int>> begin_at_, end_at_;  // nodes by boundary
  std::vector<std::vector<int>> holding_;            // nodes by layer; partial only
};

double placement_flow(const PlacementProblem& problem, const Placement& placement);

// Devices of which each is a part of some node: in a node of `devices` with these rates, or of another way to group
// them.
struct NodeChoice {
  std::vector<double> tokens_per_s;
  double devices = 1;
};
struct BoundItem {
  double devices = 1;
  std::vector<NodeChoice> choices;
};

// No placement has a greater flow F: a token needs `layers` layers computed, and a node that holds k of them computes
// no more than k min(F, rate(k)) per second, since no token passes a node twice. So F is at most the greatest with
//   sum over nodes of max_k k min(F, rate(k)) >= layers F.
double placement_bound(const PlacementProblem& problem);
double placement_bound(std::int64_t layers, const std::vector<BoundItem>& items);  // however devices are grouped

// The same without min(F, .): Helix's bound.
double compute_bound(const PlacementProblem& problem);

// A placement and its flow.
struct PlacedFlow {
  Placement placement;
  double tokens_per_s = 0;
};

// Structured starts, the greatest flow first: chains of stages over disjoint ranges. For a given flow, how many layers
// can the nodes cover if every stage must pass it on? An exact dynamic programme over the numbers of nodes used of
// every kind answers that; the greatest flow with all layers covered, and some lesser ones (links may favour them), are
// starts. Where the table would be large, alike nodes are dealt out several at a time.
std::vector<PlacedFlow> stage_placements(const PlacementProblem& problem, Instant deadline);

struct PlacementOptions {
  std::uint64_t seed = 0;
  Instant deadline = Instant::max();
  int threads = 1;  // the answer does not depend on it, unless the deadline cuts
  int restarts = 24;
  std::int64_t moves_per_node = 200;  // in each restart, of either kind
};

struct PlacementAnswer {
  Placement placement;
  double tokens_per_s = 0;  // 0: nothing covers the layers
  double bound = 0;
  bool complete = true;  // false: the deadline cut the search
  std::int64_t evaluated = 0;
};

// Restarts are dealt the starts in turn.
PlacementAnswer search_placement(const PlacementProblem& problem, std::vector<PlacedFlow> starts,
                                 const PlacementOptions& options);
// From the structured starts.
PlacementAnswer search_placement(const PlacementProblem& problem, const PlacementOptions& options);

}  // namespace motley
