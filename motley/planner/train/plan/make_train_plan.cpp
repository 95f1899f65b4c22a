#include "motley/planner/train/plan/make_train_plan.hpp"

#include <algorithm>

#include "motley/cost/train/train_cost.hpp"

namespace motley {

TrainPlan make_train_plan(const Cluster& cluster, const Model& model, const Workload& workload,
                          const TrainOptions& options, const TrainLayout& layout) {
  TrainPlan plan;
  plan.model = model;
  plan.cluster = cluster;
  plan.workload = workload;
  plan.profile = options.profile;
  plan.schedule = layout.schedule;
  plan.sync = layout.sync;
  plan.search.objective = "step";
  plan.search.cost = options.cost.form;
  plan.search.seed = static_cast<std::int64_t>(options.seed);
  const Training& training = training_of(workload);
  std::vector<bool> used(cluster.devices.size());
  for (const auto& replica : layout.replicas) {
    TrainReplica& written = plan.replicas.emplace_back();
    written.share = static_cast<double>(replica.sequences) / static_cast<double>(training.global_batch);
    written.micro_batches = replica.micro_batches;
    for (const auto& stage : replica.stages) {
      TrainStage& held = written.stages.emplace_back(
          TrainStage{.layers = stage.layers, .devices = {}, .shares = stage.shares, .strategies = stage.strategies});
      for (const int device : stage.devices) {
        held.devices.push_back(cluster.devices[static_cast<std::size_t>(device)].name);
        used[static_cast<std::size_t>(device)] = true;
      }
    }
    for (std::size_t s = 0; s < written.stages.size(); ++s) {
      const auto memory = stage_memory(plan, written, s);
      for (std::size_t rank = 0; rank < memory.size(); ++rank)
        plan.predicted.memory_bytes[written.stages[s].devices[rank]] = memory[rank];
    }
  }
  for (std::size_t device = 0; device < used.size(); ++device)
    if (!used[device]) plan.unused.push_back({cluster.devices[device].name, "no faster plan was found with it"});
  const TrainCost cost = price_train(plan, options.cost);
  plan.predicted.iteration_s = cost.iteration_s;
  plan.predicted.tokens_per_s = cost.tokens_per_s;
  plan.predicted.mfu = cost.mfu;
  plan.predicted.iteration_s_range = iteration_range(plan, options.cost);
  return plan;
}

void record_search(TrainPlan& plan, const TrainSearch& search) {
  SearchRecord& record = plan.search;
  record.planner = search.planner;
  record.status = search.status;
  record.bound = search.bound_s;
  const double value = plan.predicted.iteration_s;
  if (value > 0) record.gap = std::max(0.0, 1 - search.bound_s / value);  // below 0 by rounding alone
  record.elapsed_s = search.elapsed_s;
  record.evaluated = search.evaluated;
}

bool stage_fits(const TrainProblemView& view, const TrainLayout& layout, std::size_t replica, std::size_t number) {
  const ReplicaLayout& held = layout.replicas[replica];
  const PlacedStage& stage = held.stages[number];
  const StageFootprint footprint{
      .embedding = number == 0,
      .head = number + 1 == held.stages.size(),
      .sequences = micro_batch_of(held),
      .in_flight = micro_batches_in_flight(layout.schedule, number, held.stages.size(), held.micro_batches),
      .waiting = micro_batches_waiting(layout.schedule, number, held.stages.size(), held.micro_batches)};
  const auto memory = train_memory(view.arch, view.training, footprint, stage.strategies, stage.shares);
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const DeviceType& type = view.cluster.type_of(stage.devices[rank]);
    if (memory[rank].total() + type.reserve_bytes.value_or(0) > type.memory_bytes) return false;
  }
  return true;
}

void recompute_where_needed(const TrainProblemView& view, TrainLayout& layout) {
  for (std::size_t r = 0; r < layout.replicas.size(); ++r)
    for (std::size_t s = 0; s < layout.replicas[r].stages.size(); ++s)
      if (!stage_fits(view, layout, r, s))
        for (LayerStrategy& strategy : layout.replicas[r].stages[s].strategies) strategy.recompute = true;
}

PlacedStage tensor_parallel_stage(LayerRange layers, std::vector<int> devices, bool recompute) {
  const auto degree = std::ssize(devices);
  return {.layers = layers,
          .devices = std::move(devices),
          .strategies = {{.layers = layers, .tp = degree, .recompute = recompute}}};
}

std::vector<std::int64_t> equal_shares(std::int64_t sequences, std::int64_t replicas) {
  std::vector<std::int64_t> shares(static_cast<std::size_t>(replicas), sequences / replicas);
  for (std::int64_t r = 0; r < sequences % replicas; ++r) ++shares[static_cast<std::size_t>(r)];
  return shares;
}

}  // namespace motley
