#include "motley/plan/worker_part.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace motley {
namespace {

// Of the machines that are left, without what lies between them.
Cluster without_links(ClusterDescription description) {
  description.network = {};
  description.links.clear();
  description.switches.clear();
  description.driver.reset();
  return resolve(std::move(description), "plan");
}

Cluster machines_of(const Cluster& cluster, const Stage& stage) {
  std::set<int> described;
  for (const std::string& device : stage.devices) {
    const int machine = cluster.devices.at(static_cast<std::size_t>(cluster.find_device(device))).machine;
    described.insert(cluster.machines.at(static_cast<std::size_t>(machine)).description);
  }
  ClusterDescription description = cluster.description;
  description.machines.clear();
  for (const int machine : described)
    description.machines.push_back(cluster.description.machines.at(static_cast<std::size_t>(machine)));
  return without_links(std::move(description));
}

}  // namespace

ServePlan part_of(const ServePlan& plan, const Stage& stage) {
  ServePlan part;
  part.model = plan.model;
  part.cluster = machines_of(plan.cluster, stage);
  part.workload = plan.workload;
  part.step = plan.step;
  std::set<std::string> linked{stage.id};
  for (Route route : plan.routes) {
    const auto hop = std::ranges::find(route.path, stage.id, &Hop::stage);
    if (hop == route.path.end()) {
      route.path.clear();
    } else {
      if (hop != route.path.begin()) linked.insert(std::prev(hop)->stage);
      if (std::next(hop) != route.path.end()) linked.insert(std::next(hop)->stage);
    }
    part.routes.push_back(std::move(route));
  }
  std::ranges::copy_if(plan.stages, std::back_inserter(part.stages),
                       [&](const Stage& other) { return linked.contains(other.id); });
  return part;
}

TrainPlan part_of(const TrainPlan& plan) {
  TrainPlan part;
  part.model = plan.model;
  part.cluster = without_links(plan.cluster.description);
  part.workload = plan.workload;
  part.replicas = plan.replicas;
  part.schedule = plan.schedule;
  part.sync = plan.sync;
  return part;
}

}  // namespace motley
