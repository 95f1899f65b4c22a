// The price of a collective plan: its program on its cluster's network.
#pragma once

#include "motley/cost/collective/genmodel.hpp"
#include "motley/plan/collective_plan.hpp"

namespace motley {

struct CollectivePrice {
  CollectiveCost cost;  // of the whole vector
  CollectivePrediction predicted;
  Term rounds;     // time_s as a tree: GenModel
  Term pipelined;  // pipelined_s as a tree: motley's own form
};

CollectivePrediction predict_collective(const CollectiveCost& cost, int chunks, double limit_s,
                                        const std::string& binding_cut, const CollectiveCostOptions& options);

// The program must be sound: verify(plan).
CollectivePrice price_collective(const CollectivePlan& plan, const CollectiveCostOptions& options = {});

}  // namespace motley
