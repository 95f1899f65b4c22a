// Where the search of a grid begins.
#include <algorithm>
#include <numeric>

#include "motley/base/random.hpp"
#include "motley/planner/train/published/grid_state.hpp"

namespace motley {
namespace {

// Islands: what links up to a length connect.
std::vector<std::vector<int>> islands(const DtfmPairs& pairs, double longest_s) {
  const int n = pairs.devices;
  std::vector<int> island(static_cast<std::size_t>(n), -1);
  std::vector<std::vector<int>> found;
  for (int start = 0; start < n; ++start) {
    if (island[static_cast<std::size_t>(start)] >= 0) continue;
    const auto number = static_cast<int>(found.size());
    found.push_back({start});
    island[static_cast<std::size_t>(start)] = number;
    for (std::size_t head = 0; head < found.back().size(); ++head)
      for (int other = 0; other < n; ++other)
        if (island[static_cast<std::size_t>(other)] < 0 &&
            pairs.hop_s[static_cast<std::size_t>(found.back()[head] * n + other)] <= longest_s) {
          island[static_cast<std::size_t>(other)] = number;
          found.back().push_back(other);
        }
    std::sort(found.back().begin(), found.back().end());
  }
  return found;
}

void largest_first(std::vector<std::vector<int>>& groups) {
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

// Pipelines inside islands: shelves of as many stages as every pipeline can spend inside one island, laid on each
// other.
std::vector<std::vector<int>> shelves(const GridProblem& problem, std::vector<std::vector<int>> groups) {
  std::vector<std::vector<int>> stages;
  while (static_cast<int>(stages.size()) < problem.stages) {
    largest_first(groups);
    const auto pieces = [&](std::size_t height) {
      std::size_t sum = 0;
      for (const auto& group : groups) sum += group.size() / height;
      return sum;
    };
    const auto replicas = static_cast<std::size_t>(problem.replicas);
    std::size_t height = static_cast<std::size_t>(problem.stages) - stages.size();
    while (height > 1 && pieces(height) < replicas) --height;
    std::vector<std::vector<int>> shelf(height);
    // Smallest islands first: large ones may still hold a high shelf.
    for (auto group = groups.rbegin(); group != groups.rend(); ++group)
      while (group->size() >= height && shelf.front().size() < replicas)
        for (auto& stage : shelf) {
          stage.push_back(group->back());
          group->pop_back();
        }
    stages.insert(stages.end(), shelf.begin(), shelf.end());
  }
  return stages;
}

// Stages inside islands: devices in the order of a short path from island to island, cut into equal pieces.
std::vector<std::vector<int>> rows(const GridProblem& problem, const std::vector<std::vector<int>>& groups) {
  const auto count = static_cast<int>(groups.size());
  std::vector<double> weights(static_cast<std::size_t>(count * count));
  for (int a = 0; a < count; ++a)
    for (int b = 0; b < count; ++b)
      if (a != b)
        weights[static_cast<std::size_t>(a * count + b)] =
            problem.pairs
                .hop_s[static_cast<std::size_t>(groups[static_cast<std::size_t>(a)].front() * problem.pairs.devices +
                                                groups[static_cast<std::size_t>(b)].front())];
  std::vector<int> devices;
  for (const int group : shortest_open_path(weights, count).order)
    devices.insert(devices.end(), groups[static_cast<std::size_t>(group)].begin(),
                   groups[static_cast<std::size_t>(group)].end());
  std::vector<std::vector<int>> stages;
  for (int s = 0; s < problem.stages; ++s)
    stages.emplace_back(devices.begin() + s * problem.replicas, devices.begin() + (s + 1) * problem.replicas);
  return stages;
}

std::vector<Counts> counts_of(const GridProblem& problem, const GridClasses& classes,
                              const std::vector<std::vector<int>>& stages) {
  std::vector<Counts> parts(static_cast<std::size_t>(problem.stages) + 1,
                            Counts(static_cast<std::size_t>(classes.count())));
  std::vector<std::size_t> part_of(static_cast<std::size_t>(problem.pairs.devices), parts.size() - 1);
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const int device : stages[s]) part_of[static_cast<std::size_t>(device)] = s;
  for (std::size_t k = 0; k < classes.devices.size(); ++k)
    for (const int device : classes.devices[k]) ++parts[part_of[static_cast<std::size_t>(device)]][k];
  return parts;
}

}  // namespace

std::vector<std::vector<Counts>> structured_starts(const GridProblem& problem, const GridClasses& classes) {
  constexpr int longest_paths = 64;  // islands whose order is worth finding
  std::vector<double> lengths = classes.hop_s;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::vector<std::vector<Counts>> starts;
  std::size_t before = 0;
  for (const double length : lengths) {
    auto groups = islands(problem.pairs, length);
    if (groups.size() == before) continue;
    before = groups.size();
    if (groups.size() <= longest_paths) starts.push_back(counts_of(problem, classes, rows(problem, groups)));
    starts.push_back(counts_of(problem, classes, shelves(problem, std::move(groups))));
    if (before == 1) break;
  }
  return starts;
}

std::vector<Counts> random_start(const GridProblem& problem, const GridClasses& classes, std::uint64_t seed,
                                 std::uint64_t stream) {
  std::vector<int> devices(static_cast<std::size_t>(problem.pairs.devices));
  std::iota(devices.begin(), devices.end(), 0);
  for (std::size_t i = devices.size() - 1; i > 0; --i) {
    const double uniform = uniform_at(seed, (stream << 40) + i);
    std::swap(devices[i], devices[std::min(static_cast<std::size_t>(uniform * static_cast<double>(i + 1)), i)]);
  }
  std::vector<std::vector<int>> stages;
  for (int s = 0; s < problem.stages; ++s)
    stages.emplace_back(devices.begin() + s * problem.replicas, devices.begin() + (s + 1) * problem.replicas);
  return counts_of(problem, classes, stages);
}

}  // namespace motley
