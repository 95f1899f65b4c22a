#include "motley/workers/worker_links.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "motley/workers/worker_group.hpp"

namespace motley {

std::vector<std::string> worker_devices(const ServePlan& plan) {
  std::vector<std::string> devices;
  for (const Stage& stage : plan.stages) devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  return devices;
}

std::vector<std::pair<int, int>> crossing_pairs(const ServePlan& plan) {
  std::map<std::string, int> first_rank;
  int rank = 0;
  for (const Stage& stage : plan.stages) {
    first_rank[stage.id] = rank;
    rank += static_cast<int>(stage.devices.size());
  }
  std::set<std::pair<int, int>> pairs;
  for (const Route& route : plan.routes)
    for (std::size_t hop = 1; hop < route.path.size(); ++hop) {
      const Stage& from = plan.stage(route.path[hop - 1].stage);
      const Stage& to = plan.stage(route.path[hop].stage);
      const int senders = static_cast<int>(from.devices.size()), receivers = static_cast<int>(to.devices.size());
      for (int j = 0; j < receivers; ++j)
        pairs.insert(
            std::minmax({first_rank[from.id] + crossing_sender(j, senders, receivers), first_rank[to.id] + j}));
    }
  return {pairs.begin(), pairs.end()};
}

PlanLinks link_workers(const ServePlan& plan, LinkKind kind) {
  PlanLinks all;
  const auto take = [&](LinkEnds ends, const std::vector<std::string>& devices, InheritedLinks WorkerLinks::*place) {
    for (std::size_t rank = 0; rank < devices.size(); ++rank)
      all.of_device[devices[rank]].*place = std::move(ends.of_rank[rank]);
    std::ranges::move(ends.owned, std::back_inserter(all.owned));
  };
  for (const Stage& stage : plan.stages) {
    const int degree = static_cast<int>(stage.devices.size());
    if (degree > 1) take(make_links(degree, all_pairs(degree), kind, 0), stage.devices, &WorkerLinks::stage);
  }
  // A stage that has sent its rows goes on to the next step, and the one after.
  const std::vector<std::string> devices = worker_devices(plan);
  const std::int64_t window_bytes = 2 * largest_frame_bytes(plan);
  take(make_links(static_cast<int>(devices.size()), crossing_pairs(plan), kind, window_bytes), devices,
       &WorkerLinks::crossings);
  return all;
}

}  // namespace motley
