#include <algorithm>
#include <map>
#include <utility>

#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {
namespace {

using Start = std::vector<std::vector<int>>;

// Beyond this many times the model's size a pipeline gains nothing that two would not; searching it costs the most.
constexpr double most_copies = 6;
constexpr std::size_t few_devices = 64;  // equal parts compare the links of all pairs
constexpr int most_parts = 64;

std::string site_of(const Cluster& cluster, int device) {
  return cluster.machines[cluster.devices[device].machine].site;
}

std::map<std::string, std::vector<int>> by_site(const ServeProblem& problem) {
  const Cluster& cluster = problem.cluster;
  std::map<std::string, std::vector<int>> sites;
  for (const int device : problem.devices()) sites[site_of(cluster, device)].push_back(device);
  return sites;
}

// Halved, machine by machine, until each part is of a sensible size.
void halve(const Groups& groups, std::vector<int> devices, Start& start) {
  if (groups.copies(devices) <= most_copies || devices.size() < 2) {
    start.push_back(std::move(devices));
    return;
  }
  const auto middle = devices.begin() + static_cast<std::ptrdiff_t>(devices.size() / 2);
  halve(groups, {devices.begin(), middle}, start);
  halve(groups, {middle, devices.end()}, start);
}

// Neighbours in the list are put together until the model fits; what is left at the end joins the last group.
Start merge_until_fit(const Groups& groups, const Start& pieces, double copies) {
  Start start;
  std::vector<int> open;
  for (const auto& piece : pieces) {
    open.insert(open.end(), piece.begin(), piece.end());
    if (groups.copies(open) < copies) continue;
    start.push_back(std::move(open));
    open.clear();
  }
  if (!open.empty() && !start.empty() && groups.copies(start.back()) < most_copies / 2)
    start.back().insert(start.back().end(), open.begin(), open.end());
  else if (!open.empty())
    start.push_back(std::move(open));
  return start;
}

Start one_per_site(const Groups& groups) {
  Start start;
  for (const auto& [site, devices] : by_site(groups.problem())) halve(groups, devices, start);
  return start;
}

std::map<std::string, Start> machines_by_site(const ServeProblem& problem) {
  std::map<int, std::vector<int>> machines;
  for (const int device : problem.devices()) machines[problem.cluster.devices[device].machine].push_back(device);
  std::map<std::string, Start> sites;
  for (auto& [machine, devices] : machines) sites[problem.cluster.machines[machine].site].push_back(std::move(devices));
  return sites;
}

// Machines in order of their sites, joined until the model fits: for sites that are too small alone.
Start across_sites(const Groups& groups, double copies) {
  const std::map<std::string, Start> sites = machines_by_site(groups.problem());
  Start machines;
  for (const auto& [site, members] : sites) machines.insert(machines.end(), members.begin(), members.end());
  return merge_until_fit(groups, machines, copies);
}

// Machines of a site, those of like devices side by side, joined until the model fits with room for its caches.
Start by_machine(const Groups& groups, double copies) {
  const Cluster& cluster = groups.problem().cluster;
  std::map<std::string, Start> sites = machines_by_site(groups.problem());
  Start start;
  for (auto& [site, machines] : sites) {
    std::stable_sort(machines.begin(), machines.end(), [&](const auto& a, const auto& b) {
      return cluster.devices[a.front()].type < cluster.devices[b.front()].type;
    });
    for (auto& group : merge_until_fit(groups, machines, copies)) halve(groups, std::move(group), start);
  }
  return start;
}

// Devices of one type and site, this many to a pipeline.
Start by_type(const Groups& groups, double copies) {
  const Cluster& cluster = groups.problem().cluster;
  std::map<std::pair<std::string, int>, Start> pools;
  for (const int device : groups.problem().devices())
    pools[{site_of(cluster, device), cluster.devices[device].type}].push_back({device});
  Start start;
  for (const auto& [pool, devices] : pools)
    for (auto& group : merge_until_fit(groups, devices, copies)) start.push_back(std::move(group));
  return start;
}

}  // namespace

std::vector<Start> structured_starts(const Groups& groups) {
  const Cluster& cluster = groups.problem().cluster;
  const std::vector<int> all = groups.problem().devices();
  std::vector<Start> starts;
  const auto add = [&](Start start) {
    if (!start.empty() && std::find(starts.begin(), starts.end(), start) == starts.end())
      starts.push_back(std::move(start));
  };
  const ServeOptions& options = groups.problem().options;
  const bool one = options.replication == Replication::one_pipeline || options.objective == Objective::latency;
  const bool few = all.size() <= few_devices;
  if ((one && few) || groups.copies(all) <= most_copies || options.use_devices == UseDevices::all) add({all});
  if (few && all.size() == cluster.devices.size())
    for (int parts = 2; parts <= std::min(most_parts, static_cast<int>(groups.copies(all))); ++parts)
      add(equal_parts(cluster, parts));
  add(one_per_site(groups));
  add(across_sites(groups, 1.5));
  for (const double copies : {1.1, 1.5, 2.0, 3.0}) {
    add(by_machine(groups, copies));
    add(by_type(groups, copies));
  }
  return starts;
}

}  // namespace motley
