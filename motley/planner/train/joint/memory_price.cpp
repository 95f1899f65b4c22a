#include "motley/planner/train/joint/memory_price.hpp"

#include "motley/planner/train/joint/strategy_tables.hpp"

namespace motley {

std::vector<std::vector<double>> memory_prices_s_per_byte(const TrainPlan& plan, const CostOptions& options) {
  const Training& training = training_of(plan.workload);
  const TrainStepCost cost(options, plan.cluster, plan.model.arch, training, plan.profile);
  const TrainProblem problem{plan.cluster, plan.model, training, plan.profile, cost, plan.schedule};
  std::vector<std::vector<double>> prices;
  for (const ReplicaLayout& replica : layout_of(plan).replicas) {
    std::vector<double>& of_stages = prices.emplace_back();
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const PlacedStage& stage = replica.stages[s];
      const StagePlace place{
          .ends = {s == 0, s + 1 == replica.stages.size()},
          .sequences = (replica.sequences + replica.micro_batches - 1) / replica.micro_batches,
          .in_flight = micro_batches_in_flight(plan.schedule, s, replica.stages.size(), replica.micro_batches),
          .waiting = micro_batches_waiting(plan.schedule, s, replica.stages.size(), replica.micro_batches),
          .micro_batches = replica.micro_batches};
      of_stages.push_back(static_cast<double>(replica.micro_batches) *
                          memory_price_s_per_byte(problem, stage.devices, place, stage.layers.size(), stage.shares));
    }
  }
  return prices;
}

}  // namespace motley
