#include "motley/planner/train/plan/train_plan.hpp"

#include <algorithm>

namespace motley {
namespace {

bool fits(const TrainPlan& plan, const TrainReplica& replica, std::size_t stage) {
  const auto memory = stage_memory(plan, replica, stage);
  return std::all_of(memory.begin(), memory.end(),
                     [](const TrainMemory& device) { return device.total() <= device.limit; });
}

}  // namespace

std::vector<std::int64_t> equal_shares(std::int64_t sequences, std::int64_t replicas) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(replicas), sequences / replicas);
  for (std::int64_t r = 0; r < sequences % replicas; ++r) ++shares[static_cast<std::size_t>(r)];
  return shares;
}

TrainPlan make_train_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                          const std::vector<FoundReplica>& replicas, Recompute recompute, GradientSync sync,
                          const CostOptions& cost) {
  TrainPlan plan;
  plan.model = model;
  plan.cluster = cluster;
  plan.workload = workload;
  plan.sync = sync;
  plan.search.cost = cost.form;
  const Training& training = training_of(workload);
  std::vector<bool> used(cluster.devices.size());
  for (const FoundReplica& found : replicas) {
    TrainReplica& replica = plan.replicas.emplace_back();
    replica.share = static_cast<double>(found.sequences) / static_cast<double>(training.global_batch);
    replica.micro_batches = found.micro_batches;
    std::int64_t layer = 0;
    for (const FoundStage& stage : found.stages) {
      TrainStage& written = replica.stages.emplace_back();
      written.layers = {layer, layer + stage.layers};
      layer += stage.layers;
      for (const int device : stage.devices) {
        written.devices.push_back(cluster.devices[static_cast<std::size_t>(device)].name);
        used[static_cast<std::size_t>(device)] = true;
      }
      written.strategies = {{.layers = written.layers,
                             .tp = static_cast<std::int64_t>(stage.devices.size()),
                             .recompute = recompute == Recompute::always}};
    }
    for (std::size_t s = 0; s < replica.stages.size(); ++s)
      if (recompute == Recompute::where_needed && !fits(plan, replica, s))
        replica.stages[s].strategies.front().recompute = true;
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const auto memory = stage_memory(plan, replica, s);
      for (std::size_t rank = 0; rank < memory.size(); ++rank)
        plan.predicted.memory_bytes[replica.stages[s].devices[rank]] = memory[rank];
    }
  }
  for (std::size_t device = 0; device < used.size(); ++device)
    if (!used[device]) plan.unused.push_back({cluster.devices[device].name, "slower with it"});
  const TrainCost price = price_train(plan, cost);
  plan.predicted.iteration_s = price.iteration_s;
  plan.predicted.tokens_per_s = price.tokens_per_s;
  plan.predicted.mfu = price.mfu;
  return plan;
}

}  // namespace motley
