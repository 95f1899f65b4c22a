#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "motley/planner/train/joint/candidate.hpp"

namespace motley {
namespace {

using Group = std::vector<int>;

constexpr std::size_t widest_stage = 64;  // devices of a stage that a start has
constexpr std::size_t many_groups = 128;  // where numbers of replicas are tried more sparsely

// What a stage may stand on.
enum class StageDevices { like_of_a_machine, like_of_a_site, of_a_site, all };

// In groups of `size`; what is left over forms smaller powers of two.
std::vector<Group> groups_of(const Cluster& cluster, std::size_t size, StageDevices together) {
  std::map<std::tuple<std::string, int, int>, Group> pools;
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) {
    const Device& device = cluster.devices[d];
    const bool one_site = together != StageDevices::all, like = together < StageDevices::of_a_site;
    const bool one_machine = together == StageDevices::like_of_a_machine;
    const std::string& site = cluster.machines[static_cast<std::size_t>(device.machine)].site;
    pools[{one_site ? site : "", one_machine ? device.machine : 0, like ? device.type : 0}].push_back(
        static_cast<int>(d));
  }
  std::vector<Group> groups;
  for (const auto& [where, devices] : pools)
    for (std::size_t first = 0, take = size; first < devices.size(); first += take) {
      while (take > devices.size() - first) take /= 2;
      groups.emplace_back(devices.begin() + static_cast<std::ptrdiff_t>(first),
                          devices.begin() + static_cast<std::ptrdiff_t>(first + take));
    }
  return groups;
}

// Like devices of a machine, a size for every type.
std::vector<Group> groups_of(const Cluster& cluster, const std::vector<std::size_t>& sizes) {
  std::vector<Group> groups;
  for (Group& whole : groups_of(cluster, cluster.devices.size(), StageDevices::like_of_a_machine)) {
    const std::size_t size = sizes[static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(whole[0])].type)];
    for (std::size_t first = 0; first < whole.size(); first += size)
      groups.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(first),
                          whole.begin() + static_cast<std::ptrdiff_t>(std::min(whole.size(), first + size)));
  }
  return groups;
}

// Sizes of groups, by type, that are about as fast as each other: whole layers on the slowest devices would otherwise
// set the pace.
std::set<std::vector<std::size_t>> balanced_sizes(const TrainProblem& problem, std::size_t largest) {
  std::vector<double> speeds(problem.cluster.types.size());
  for (std::size_t d = 0; d < problem.cluster.devices.size(); ++d)
    speeds[static_cast<std::size_t>(problem.cluster.devices[d].type)] = blocks_per_s(problem, static_cast<int>(d));
  std::set<std::vector<std::size_t>> all;
  for (const double speed : speeds)
    for (std::size_t size = 1; size <= largest; size *= 2) {
      std::vector<std::size_t> sizes;
      for (const double other : speeds) {
        std::size_t enough = 1;
        while (enough < largest && static_cast<double>(enough) * other < static_cast<double>(size) * speed * 0.99)
          enough *= 2;
        sizes.push_back(enough);
      }
      all.insert(std::move(sizes));
    }
  return all;
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
  for (const int device : group) sum += blocks_per_s(problem, device);
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

// Every division of few devices, alike ones told apart once: each device goes to a stage, to a new stage anywhere, to a
// new replica, or nowhere.
class Everything {
 public:
  explicit Everything(const Cluster& cluster) : cluster_(cluster) {}

  std::vector<TrainCandidate> list() {
    place(0);
    std::vector<TrainCandidate> all;
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
    Looks looks;
    for (const auto& replica : replicas_) {
      auto& look = looks.emplace_back();
      for (const auto& group : replica) {
        auto& kinds = look.emplace_back();
        for (const int member : group) kinds.emplace_back(device(member).machine, device(member).type);
        std::sort(kinds.begin(), kinds.end());
      }
    }
    std::sort(looks.begin(), looks.end());
    known_.try_emplace(std::move(looks), replicas_);
  }

  // Replicas, their stages, and of each device there its machine and type.
  using Looks = std::vector<std::vector<std::vector<std::pair<int, int>>>>;
  const Cluster& cluster_;
  std::vector<PipelineGroups> replicas_;
  std::map<Looks, std::vector<PipelineGroups>> known_;
};

// Every number of replicas for few groups, then ever fewer of them.
std::vector<std::size_t> replica_counts(std::size_t groups) {
  std::vector<std::size_t> counts;
  const std::size_t denominator = groups > many_groups ? 2 : 4;
  for (std::size_t n = 1; n <= groups; n = std::max(n + 1, n + n / denominator)) counts.push_back(n);
  if (counts.back() != groups) counts.push_back(groups);
  return counts;
}

}  // namespace

std::vector<TrainCandidate> structured_candidates(const TrainProblem& problem) {
  if (problem.cluster.devices.size() <= few_devices) return Everything(problem.cluster).list();
  std::vector<TrainCandidate> starts;
  std::set<std::vector<PipelineGroups>> known;
  const auto add = [&](std::vector<Group> groups) {
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
  };
  std::size_t largest = 1;
  for (const auto& machine : problem.cluster.machines) largest = std::max(largest, machine.devices.size());
  for (std::size_t size = 1; size <= largest; size *= 2)
    add(groups_of(problem.cluster, size, StageDevices::like_of_a_machine));
  for (const auto& sizes : balanced_sizes(problem, largest)) add(groups_of(problem.cluster, sizes));
  for (std::size_t size = 2; size <= std::min(widest_stage, problem.cluster.devices.size()); size *= 2) {
    if (size > largest) add(groups_of(problem.cluster, size, StageDevices::like_of_a_site));
    add(groups_of(problem.cluster, size, StageDevices::of_a_site));
  }
  if (problem.cluster.devices.size() <= widest_stage)
    starts.push_back({{groups_of(problem.cluster, problem.cluster.devices.size(), StageDevices::all)}, 1});
  return starts;
}

}  // namespace motley
