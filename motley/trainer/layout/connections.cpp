#include "motley/trainer/layout/connections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/plan/gradient_sync.hpp"

namespace motley {
namespace {

constexpr double connect_timeout_s = 60;  // the others may still be starting
constexpr std::uint64_t first_epoch = 1;

}  // namespace

TrainConnections::TrainConnections(const TrainPlan& plan, int worker, const std::vector<WorkerAddress>& addresses,
                                   Fabric& fabric, ActivityLog& activity, const std::stop_token& stop) {
  const std::vector<std::string> devices = train_devices(plan);
  if (addresses.size() != devices.size())
    throw Error(ErrorCode::peer, fmt::format("{} addresses for {} workers", addresses.size(), devices.size()));
  const auto connect = [&](const std::string& name, const std::vector<int>& workers) {
    std::vector<std::string> members;
    std::vector<WorkerAddress> at;
    for (const int member : workers) {
      members.push_back(devices[static_cast<std::size_t>(member)]);
      at.push_back(addresses[static_cast<std::size_t>(member)]);
    }
    const auto rank = static_cast<int>(std::ranges::find(workers, worker) - workers.begin());
    return std::make_unique<WorkerGroup>(name, members, rank, first_epoch, at, fabric, connect_timeout_s, stop);
  };
  for (const TrainGroup& group : train_groups(plan)) {
    if (std::ranges::find(group.workers, worker) == group.workers.end()) continue;
    WorkerGroup& connected = *groups_.emplace(group, connect(group.name(), group.workers)).first->second;
    if (group.kind != GroupKind::gradients) connected.tell(activity, group.workers);
    // Without rounds of its own a group adds up directly, in the order of its ranks.
    if (group.kind != GroupKind::gradients || plan.sync.algorithm == SyncAlgorithm::direct) continue;
    std::vector<int> holders;
    for (const int member : group.workers)
      holders.push_back(plan.cluster.find_device(devices[static_cast<std::size_t>(member)]));
    connected.add_up_along(sync_group(plan.cluster, plan.sync.algorithm, holders));
  }
  for (const auto& [from, to] : crossing_pairs(plan)) {
    if (from != worker && to != worker) continue;
    auto& rows = rows_[{from, to}] = connect(fmt::format("rows {}>{}", from, to), {from, to});
    if (to == worker) rows->tell(activity, {from, to});
  }
}

WorkerGroup* TrainConnections::group(GroupKind kind, const std::vector<int>& workers) const {
  const auto found = groups_.find({kind, workers});
  MOTLEY_CHECK(workers.size() < 2 || found != groups_.end());
  return found == groups_.end() ? nullptr : found->second.get();
}

WorkerGroup& TrainConnections::rows(int from, int to) const { return *rows_.at({from, to}); }

}  // namespace motley
