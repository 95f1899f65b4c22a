#include "motley/planner/serve/grouping/bound.hpp"

#include <algorithm>

#include "motley/planner/serve/pipeline/need.hpp"

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
    usable += usable_with_tiers(problem, device);
    together += bandwidth;
    fastest = std::max(fastest, here += bandwidth);
  }
  if (problem.options.tensor_parallel == TensorParallel::across_machines) fastest = together;
  const Architecture& arch = problem.model.arch;
  const Shard whole = make_shards(arch, 1).front();
  // Of all blocks, by a step of one token.
  auto read = static_cast<double>(weight_bytes(arch, {.layers = {0, arch.layers}}, whole, problem.smallest_weights()));
  read *= static_cast<double>(active_parameters(arch)) / static_cast<double>(total_parameters(arch));
  // Who only prefills holds less for one step.
  const double prefill_steps = may_have_roles(problem) ? 0 : 1;
  const double steps = std::max(1.0, problem.workload.mean_output_tokens() - 1 + prefill_steps);
  const double request_s = steps * read / fastest;
  const KvTokens each = kv_tokens_each(problem.point(1));
  return std::max(0.0, usable - need.weights) / (need.kv * each.mean / each.last) / request_s;
}

// Every device divides its time between whole requests, prefilling and decoding, and as many requests are prefilled
// as are decoded. By duality of linear programs that is the least over the value v of a prefill (1 - v: of a decode)
// of the sum of what every device earns at most; any v bounds it.
double compute_bound_apart(const Groups& groups) {
  ServeProblem prefill = groups.problem(), decode = groups.problem();
  prefill.phase = Phase::prefill;
  decode.phase = Phase::decode;
  const Groups prefilling(prefill), decoding(decode);
  const auto earned = [&](double value) {
    double sum = 0;
    for (const int device : groups.problem().devices())
      sum += std::max({groups.most_requests_per_s({device}), value * prefilling.most_requests_per_s({device}),
                       (1 - value) * decoding.most_requests_per_s({device})});
    return sum;
  };
  double low = 0, high = 1;  // convex in between
  for (int round = 0; round < 100; ++round) {
    const double third = (high - low) / 3;
    if (earned(low + third) < earned(high - third))
      high -= third;
    else
      low += third;
  }
  return earned((low + high) / 2);
}

}  // namespace

double most_requests_per_s(const Groups& groups) {
  const ServeProblem& problem = groups.problem();
  const double compute =
      may_have_roles(problem) ? compute_bound_apart(groups) : groups.most_requests_per_s(problem.devices());
  // The published forms count memory in their own way.
  return problem.options.cost.form == "motley" ? std::min(compute, memory_bound(groups)) : compute;
}

}  // namespace motley
