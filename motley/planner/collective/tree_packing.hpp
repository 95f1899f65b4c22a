// All_reduce, reduce_scatter, all_gather and broadcast on small networks of any shape, as a packing of spanning trees.
//
// Every part of the vector is reduced along a tree into one rank and spread along a tree out of it; trees are over the
// ranks, their edges paths of the network. The least time of the busiest port is a linear programme with a column per
// tree; columns are made as they are needed, from the least-cost trees under the present prices of the ports (Chu, Liu,
// Edmonds). The same prices bound the optimum from below, so that the answer carries its gap.
#pragma once

#include <vector>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {

// A part of the vector, the rank in which it comes together, and who hands it to whom (-1: the root itself).
struct PackedTree {
  double share = 0;
  int root = 0;
  std::vector<int> reduce_to;      // by rank; empty where nothing is reduced
  std::vector<int> receives_from;  // by rank; empty where nothing is spread
};

struct TreePacking {
  std::vector<PackedTree> trees;
  double steady_s = 0;  // of the busiest port
  double bound_s = 0;   // no packing is below
};

struct PackingOptions {
  double gap = 2e-3;      // (steady - bound) / bound that is good enough
  int most_passes = 200;  // of making columns
  double deadline_s = 5;
};

// `root` of a broadcast. Ranks: two or more.
TreePacking pack_trees(const CollectiveNetwork& network, CollectiveOperation operation, int root, double bytes,
                       const PackingOptions& options);

// Rounds of both halves: trees in step, each as deep as it is. In reduce_scatter and all_gather the parts of a root lie
// in its block of the vector, which is block_of[root].
std::vector<CollectiveRound> packed_rounds(const TreePacking& packing, CollectiveOperation operation,
                                           const std::vector<int>& block_of, std::int64_t bytes,
                                           std::int64_t alignment);

// Least-cost tree out of `root`: who each node hangs below (-1: the root). `cost`: from * nodes + to.
std::vector<int> least_arborescence(const std::vector<double>& cost, int nodes, int root);

}  // namespace motley
