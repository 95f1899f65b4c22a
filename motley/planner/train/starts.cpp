#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "motley/planner/train/deployment.hpp"

namespace motley {
namespace {

using Group = std::vector<int>;

// Like devices of a machine in groups of `size`; what is left over forms smaller powers of two.
std::vector<Group> groups_of(const Cluster& cluster, std::size_t size) {
  std::vector<Group> groups;
  for (const auto& machine : cluster.machines) {
    std::map<int, Group> by_type;
    for (const int device : machine.devices)
      by_type[cluster.devices[static_cast<std::size_t>(device)].type].push_back(device);
    for (const auto& [type, devices] : by_type)
      for (std::size_t first = 0, take = size; first < devices.size(); first += take) {
        while (take > devices.size() - first) take /= 2;
        groups.emplace_back(devices.begin() + static_cast<std::ptrdiff_t>(first),
                            devices.begin() + static_cast<std::ptrdiff_t>(first + take));
      }
  }
  return groups;
}

// Which groups stand side by side.
enum class Neighbours { of_a_machine, of_a_type_and_site, of_a_type };
void sort_groups(const Cluster& cluster, std::vector<Group>& groups, Neighbours neighbours) {
  const auto key = [&](const Group& group) {
    const Device& device = cluster.devices[static_cast<std::size_t>(group.front())];
    const std::string& site = cluster.machines[static_cast<std::size_t>(device.machine)].site;
    const int type_first = neighbours == Neighbours::of_a_type ? device.type : 0;
    const int type = neighbours == Neighbours::of_a_machine ? 0 : device.type;
    return std::tuple(type_first, site, type, device.machine, device.type, group.front());
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) { return key(a) < key(b); });
}

double speed_of(const TrainProblem& problem, const Group& group) {
  double sum = 0;
  for (const int device : group)
    sum += problem.cost.peak_flop_per_s(device) * problem.cluster.type_of(device).efficiency.compute;
  return sum;
}

// Consecutive groups to a replica, all replicas about equally fast.
std::vector<PipelineGroups> in_blocks(const TrainProblem& problem, const std::vector<Group>& groups,
                                      std::size_t parts) {
  double whole = 0, so_far = 0;
  for (const auto& group : groups) whole += speed_of(problem, group);
  std::vector<PipelineGroups> replicas(parts);
  for (const auto& group : groups) {
    const double middle = so_far + speed_of(problem, group) / 2;
    so_far += speed_of(problem, group);
    replicas[std::min(parts - 1, static_cast<std::size_t>(middle / whole * static_cast<double>(parts)))].push_back(
        group);
  }
  std::erase_if(replicas, [](const auto& replica) { return replica.empty(); });
  return replicas;
}

// One after the other to each replica, so that all are alike.
std::vector<PipelineGroups> dealt(const std::vector<Group>& groups, std::size_t parts) {
  std::vector<PipelineGroups> replicas(parts);
  for (std::size_t i = 0; i < groups.size(); ++i) replicas[i % parts].push_back(groups[i]);
  return replicas;
}

// Every division of few devices, alike ones told apart once: each device goes to a stage of its like, to a new stage
// anywhere, to a new replica, or nowhere.
class Everything {
 public:
  explicit Everything(const Cluster& cluster) : cluster_(cluster) {}

  std::vector<Deployment> list() {
    place(0);
    std::vector<Deployment> all;
    for (auto& [looks, replicas] : known_)
      if (!replicas.empty()) all.push_back({std::move(replicas), 1});
    return all;
  }

 private:
  const Device& device(int number) const { return cluster_.devices[static_cast<std::size_t>(number)]; }

  void place(int number) {
    if (number == static_cast<int>(cluster_.devices.size())) return keep();
    place(number + 1);
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      for (std::size_t s = 0; s < replicas_[r].size(); ++s) {
        const Device& like = device(replicas_[r][s].front());
        if (like.type != device(number).type || like.machine != device(number).machine) continue;
        replicas_[r][s].push_back(number);
        place(number + 1);
        replicas_[r][s].pop_back();
      }
      for (std::size_t s = 0; s <= replicas_[r].size(); ++s) {
        replicas_[r].insert(replicas_[r].begin() + static_cast<std::ptrdiff_t>(s), Group{number});
        place(number + 1);
        replicas_[r].erase(replicas_[r].begin() + static_cast<std::ptrdiff_t>(s));
      }
    }
    replicas_.push_back({{number}});
    place(number + 1);
    replicas_.pop_back();
  }

  void keep() {
    std::vector<std::vector<std::pair<std::pair<int, int>, std::size_t>>> looks;
    for (const auto& replica : replicas_) {
      auto& look = looks.emplace_back();
      for (const auto& group : replica) {
        const Device& like = device(group.front());
        look.push_back({{like.machine, like.type}, group.size()});
      }
    }
    std::sort(looks.begin(), looks.end());
    known_.try_emplace(std::move(looks), replicas_);
  }

  const Cluster& cluster_;
  std::vector<PipelineGroups> replicas_;
  std::map<std::vector<std::vector<std::pair<std::pair<int, int>, std::size_t>>>, std::vector<PipelineGroups>> known_;
};

// Every number of replicas for few groups, then ever fewer of them.
std::vector<std::size_t> replica_counts(std::size_t groups) {
  std::vector<std::size_t> counts;
  for (std::size_t n = 1; n <= groups; n = std::max(n + 1, n * 5 / 4)) counts.push_back(n);
  if (counts.back() != groups) counts.push_back(groups);
  return counts;
}

}  // namespace

std::vector<Deployment> structured_deployments(const TrainProblem& problem) {
  if (problem.cluster.devices.size() <= kFewDevices) return Everything(problem.cluster).list();
  std::vector<Deployment> starts;
  std::set<std::vector<PipelineGroups>> known;
  std::size_t largest = 1;
  for (const auto& machine : problem.cluster.machines) largest = std::max(largest, machine.devices.size());
  for (std::size_t size = 1; size <= largest; size *= 2) {
    std::vector<Group> groups = groups_of(problem.cluster, size);
    for (const Neighbours neighbours :
         {Neighbours::of_a_machine, Neighbours::of_a_type_and_site, Neighbours::of_a_type}) {
      sort_groups(problem.cluster, groups, neighbours);
      for (const std::size_t parts : replica_counts(groups.size()))
        for (const bool deal : {false, true}) {
          std::vector<PipelineGroups> replicas = deal ? dealt(groups, parts) : in_blocks(problem, groups, parts);
          const bool too_long = std::any_of(replicas.begin(), replicas.end(), [&](const PipelineGroups& replica) {
            return std::ssize(replica) > problem.model.arch.layers;
          });
          if (!too_long && known.insert(replicas).second) starts.push_back({std::move(replicas), 1});
        }
    }
  }
  return starts;
}

}  // namespace motley
