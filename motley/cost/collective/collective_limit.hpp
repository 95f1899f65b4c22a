// The least time in which a network can carry a collective, counting bytes alone.
//
// Every block of the vector moves along a reduction tree, a broadcast tree, or both, over the ranks; such a tree has
// ranks - 1 edges, at most n - 1 of them inside a group of n ranks, and crosses every cut that parts it. So in time T
// what a subtree v can receive is at most R(v) = min(sum of R over its children, trees (n_v - 1) S + T u_v), and R of a
// rank T b; for every inner node taken as the root the branches together must receive trees (N - 1) S, with one tree
// per block or, for an all_reduce, two. The same holds of what is sent. T* is the least T that all this allows and in
// which every link carries what must cross it. Holds for plans that move partial sums and copies: no coding, no
// arithmetic in switches. On trees it has equalled the optimum wherever that was computed; a mesh is taken as if each
// node's links were one, so that there it may be too low.
#pragma once

#include <string>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/plan/collective_program.hpp"

namespace motley {

struct CollectiveLimit {
  double seconds = 0;
  std::string binding_cut;  // the links that allow no less
};

CollectiveLimit collective_limit(const CollectiveNetwork& network, CollectiveOperation operation, int root,
                                 double bytes);

}  // namespace motley
