#include "motley/planner/serve/bound.hpp"

#include <algorithm>
#include <limits>

#include "motley/planner/serve/need.hpp"

namespace motley {
namespace {

double memory_bound(const Groups& groups) {
  const ServeProblem& problem = groups.problem();
  const Cluster& cluster = problem.cluster;
  const Need need = least_need(problem);
  double usable = 0, fastest = 0, together = 0;
  std::vector<double> of_machine(cluster.machines.size(), 0);
  for (const int device : problem.devices()) {
    const DeviceType& type = cluster.type_of(device);
    const double bandwidth = type.memory_bandwidth_bytes_per_s * type.efficiency.bandwidth;
    double& here = of_machine[cluster.devices[device].machine];
    usable += usable_bytes(problem, device);
    together += bandwidth;
    fastest = std::max(fastest, here += bandwidth);
  }
  if (problem.options.tensor_parallel == TensorParallel::across_machines) fastest = together;
  const double layers = static_cast<double>(problem.model.arch.layers);
  const Shard whole = make_shards(problem.model.arch, 1).front();
  const double layer_bytes =
      static_cast<double>(weight_bytes(problem.model.arch, {.layers = 1}, whole, problem.weight_type));
  const double steps = std::max(1.0, problem.workload.mean_output_tokens());
  const double request_s = steps * layers * layer_bytes / fastest;
  return std::max(0.0, usable - need.weights) / need.kv / request_s;
}

}  // namespace

double most_requests_per_s(const Groups& groups) {
  const double compute = groups.most_requests_per_s(groups.problem().devices());
  // The published forms count memory in their own way.
  return groups.problem().options.cost.form == "motley" ? std::min(compute, memory_bound(groups)) : compute;
}

}  // namespace motley
