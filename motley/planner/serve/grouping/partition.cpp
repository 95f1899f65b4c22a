#include <algorithm>
#include <utility>

#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_groups = 600;

std::vector<DeviceClass> classes_of(const ServeProblem& problem) {
  return collapse(problem.cluster, problem.devices(), Alike::by_links, 1);
}

std::int64_t groups_of(const std::vector<DeviceClass>& classes) {
  std::int64_t groups = 1;
  for (const auto& alike : classes) {
    groups *= static_cast<std::int64_t>(alike.units.size()) + 1;
    if (groups > most_groups) return groups;
  }
  return groups;
}

// Numbers of devices of every class, as one index: mixed radix, the first class fastest.
class Counts {
 public:
  explicit Counts(const std::vector<DeviceClass>& classes) {
    std::int64_t weight = 1;
    for (const auto& alike : classes) {
      weight_.push_back(weight);
      radix_.push_back(static_cast<std::int64_t>(alike.units.size()) + 1);
      weight *= radix_.back();
    }
    size_ = weight;
  }
  std::int64_t size() const { return size_; }
  std::size_t classes() const { return radix_.size(); }
  std::int64_t digit(std::int64_t index, std::size_t k) const { return index / weight_[k] % radix_[k]; }
  std::int64_t weight(std::size_t k) const { return weight_[k]; }
  bool fits(std::int64_t part, std::int64_t whole) const {
    for (std::size_t k = 0; k < radix_.size(); ++k)
      if (digit(part, k) > digit(whole, k)) return false;
    return true;
  }

 private:
  std::vector<std::int64_t> weight_, radix_;
  std::int64_t size_ = 1;
};

struct Choice {
  double worth = 0;
  bool possible = true;    // with every device in use, where that is asked
  std::int64_t group = 0;  // 0: a device of the first class that is left stays idle
  std::int64_t rest = 0;
};

}  // namespace

bool few_enough_for_partitions(const ServeProblem& problem) {
  // Equal links are what makes classes; looking at all pairs of a large cluster takes longer than it is worth.
  return problem.cluster.devices.size() <= 64 && groups_of(classes_of(problem)) <= most_groups;
}

ClassGroups class_groups(const ServeProblem& problem) {
  const std::vector<DeviceClass> classes = classes_of(problem);
  const Counts counts(classes);
  ClassGroups result;
  for (const auto& alike : classes) {
    result.classes.emplace_back();
    for (const Unit& unit : alike.units) result.classes.back().push_back(unit.front());
  }
  for (std::int64_t group = 1; group < counts.size(); ++group) {
    ClassGroups::Group& entry = result.groups.emplace_back();
    for (std::size_t k = 0; k < counts.classes(); ++k) {
      entry.takes.push_back(counts.digit(group, k));
      entry.devices.insert(entry.devices.end(), result.classes[k].begin(),
                           result.classes[k].begin() + counts.digit(group, k));
    }
  }
  return result;
}

namespace {

// The best partitions of every group's devices.
struct Partitions {
  std::vector<DeviceClass> classes;
  Counts counts;
  std::vector<Choice> table;
  bool exact = true;
  std::int64_t evaluated = 0;
};

Partitions partitions_of(Groups& groups) {
  const ServeProblem& problem = groups.problem();
  const Objective objective = problem.options.objective;
  const bool all = problem.options.use_devices == UseDevices::all;
  std::vector<DeviceClass> classes = classes_of(problem);
  const Counts counts(classes);
  const ClassGroups candidates = class_groups(problem);

  Partitions partitions{std::move(classes), counts, std::vector<Choice>(static_cast<std::size_t>(counts.size()))};
  std::vector<double> worths(static_cast<std::size_t>(counts.size()), 0);
  for (std::int64_t group = 1; group < counts.size(); ++group) {
    const std::vector<int>& devices = candidates.groups[static_cast<std::size_t>(group - 1)].devices;
    if (!groups.may_fit(devices)) continue;
    const Pipeline pipeline = groups.best(devices);
    partitions.evaluated += pipeline.answer->part.evaluated;
    partitions.exact = partitions.exact && pipeline.answer->part.exact;
    worths[static_cast<std::size_t>(group)] = worth(pipeline, objective);
  }

  std::vector<Choice>& table = partitions.table;
  for (std::int64_t left = 1; left < counts.size(); ++left) {
    Choice& best = table[static_cast<std::size_t>(left)];
    std::size_t first = 0;
    while (counts.digit(left, first) == 0) ++first;
    best.rest = left - counts.weight(first);
    best.worth = table[static_cast<std::size_t>(best.rest)].worth;
    best.possible = !all;
    for (std::int64_t group = counts.weight(first); group <= left; ++group) {
      const double value = worths[static_cast<std::size_t>(group)];
      if (value <= 0 || counts.digit(group, first) == 0 || !counts.fits(group, left)) continue;
      const Choice& rest = table[static_cast<std::size_t>(left - group)];
      // Of equal worths the one with the larger group: fewer pipelines.
      if (!rest.possible || (best.possible && value + rest.worth < best.worth * (1 - 1e-12))) continue;
      best = {value + rest.worth, true, group, left - group};
    }
  }

  return partitions;
}

}  // namespace

std::vector<double> most_worths(Groups& groups, bool& exact) {
  const Partitions partitions = partitions_of(groups);
  exact = exact && partitions.exact;
  std::vector<double> worths;
  for (std::size_t group = 1; group < partitions.table.size(); ++group)
    worths.push_back(partitions.table[group].possible ? partitions.table[group].worth : 0);
  return worths;
}

Grouping best_partition(Groups& groups) {
  const Partitions partitions = partitions_of(groups);
  const auto& [classes, counts, table, exact, evaluated] = partitions;
  Grouping grouping{.pipelines = {}, .exact = exact, .evaluated = evaluated};
  const Choice& whole = table.back();
  if (!whole.possible || whole.worth <= 0) return grouping;
  std::vector<std::size_t> dealt(classes.size(), 0);
  for (std::int64_t left = counts.size() - 1; left > 0; left = table[static_cast<std::size_t>(left)].rest) {
    const std::int64_t group = table[static_cast<std::size_t>(left)].group;
    if (group == 0) continue;
    std::vector<int> devices;
    for (std::size_t k = 0; k < counts.classes(); ++k)
      for (std::int64_t i = 0; i < counts.digit(group, k); ++i) devices.push_back(classes[k].units[dealt[k]++][0]);
    grouping.pipelines.push_back(groups.best(devices));
  }
  return grouping;
}

}  // namespace motley
