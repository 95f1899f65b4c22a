#include "motley/plan/gradient_sync.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace motley {
namespace {

CollectiveGroup together(std::vector<CollectiveGroup> members) {
  if (members.size() == 1) return std::move(members.front());
  return {.rank = -1, .pattern = GroupPattern::direct, .members = std::move(members)};
}

}  // namespace

CollectiveGroup sync_group(const Cluster& cluster, SyncAlgorithm algorithm, const std::vector<int>& devices) {
  std::vector<int> ranks(devices.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(ranks, {}, [&](int rank) { return devices[static_cast<std::size_t>(rank)]; });
  if (algorithm == SyncAlgorithm::direct) return flat_group(ranks, GroupPattern::direct);
  if (algorithm == SyncAlgorithm::ring) return flat_group(ranks, GroupPattern::ring);
  std::map<std::string, std::map<int, std::vector<CollectiveGroup>>> sites;  // by machine
  for (const int rank : ranks) {
    const int machine = cluster.devices[static_cast<std::size_t>(devices[static_cast<std::size_t>(rank)])].machine;
    const std::string& site = cluster.machines[static_cast<std::size_t>(machine)].site;
    sites[site][machine].push_back({.rank = rank, .pattern = GroupPattern::direct, .members = {}});
  }
  std::vector<CollectiveGroup> all;
  for (auto& [site, machines] : sites) {
    std::vector<CollectiveGroup> groups;
    for (auto& [machine, members] : machines) groups.push_back(together(std::move(members)));
    all.push_back(together(std::move(groups)));
  }
  return together(std::move(all));
}

}  // namespace motley
