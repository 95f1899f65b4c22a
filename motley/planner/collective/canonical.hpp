// A network with its ranks in an order that does not depend on how they were numbered.
#pragma once

#include <vector>

#include "motley/cost/collective/collective_network.hpp"

namespace motley {

struct CanonicalNetwork {
  CollectiveNetwork network;
  std::vector<int> rank_of;  // by canonical rank: the rank that it is outside
};

// Branches of a crossbar are sorted by what they are (speeds, latencies, ranks below), like ones side by side; those of
// a mesh stay in their order. Isomorphic trees come out equal.
CanonicalNetwork canonical_network(const CollectiveNetwork& network);

}  // namespace motley
