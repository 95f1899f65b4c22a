// The grid that devices are assigned to: stages x replicas, one device each.
#pragma once

#include "motley/cost/published/dtfm.hpp"

namespace motley {

struct GridProblem {
  int stages = 0;
  int replicas = 0;
  DtfmPairs pairs;  // of at least stages x replicas devices; others stay idle
};

}  // namespace motley
