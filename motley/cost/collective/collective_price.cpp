#include "motley/cost/collective/collective_price.hpp"

#include <algorithm>

#include "motley/cost/collective/collective_limit.hpp"

namespace motley {

CollectivePrediction predict_collective(const CollectiveCost& cost, int chunks, double limit_s,
                                        const std::string& binding_cut, const CollectiveCostOptions& options) {
  CollectivePrediction predicted{.time_s = cost.time_s,
                                 .pipelined_s = cost.pipelined_s(chunks, options),
                                 .steady_s = cost.steady_s,
                                 .limit_s = limit_s,
                                 .efficiency = 1,
                                 .binding_cut = binding_cut};
  if (predicted.pipelined_s > 0) predicted.efficiency = limit_s / predicted.pipelined_s;
  return predicted;
}

CollectivePrice price_collective(const CollectivePlan& plan, const CollectiveCostOptions& options) {
  const CollectiveNetwork network = collective_network(plan.cluster);
  const auto& program = plan.program;
  // Steps that name their chunks are priced as they stand: there is nothing to repeat.
  const bool alike = std::all_of(program.steps.begin(), program.steps.end(), [](const auto& steps) {
    return std::all_of(steps.begin(), steps.end(), [](const CollectiveStep& step) { return step.chunk == 0; });
  });
  const int chunks = alike ? program.chunks : 1;
  CollectivePrice price;
  price.cost = price_rounds(network, rounds_of(program), chunks);
  const auto limit = collective_limit(network, program.operation, program.root, static_cast<double>(program.bytes));
  // A search may have proved more than the counting does.
  price.predicted = predict_collective(
      price.cost, chunks, std::max(limit.seconds, plan.predicted.limit_s),
      plan.predicted.limit_s > limit.seconds ? plan.predicted.binding_cut : limit.binding_cut, options);
  price.rounds = genmodel_term(price.cost);
  price.pipelined = pipelined_term(price.cost, chunks, options);
  return price;
}

}  // namespace motley
