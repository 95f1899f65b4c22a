#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"
#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {
namespace {

constexpr std::size_t idle_place = std::numeric_limits<std::size_t>::max();  // the place of devices in no group
constexpr double start_temperature = 0.1;  // of the mean worth of a pipeline; falls to nothing

std::vector<int> without(const std::vector<int>& devices, const std::vector<int>& taken) {
  std::vector<int> rest;
  for (const int device : devices)
    if (std::find(taken.begin(), taken.end(), device) == taken.end()) rest.push_back(device);
  return rest;
}
std::vector<int> joined(std::vector<int> devices, const std::vector<int>& more) {
  devices.insert(devices.end(), more.begin(), more.end());
  return devices;
}

class LocalSearch {
 public:
  LocalSearch(Groups& groups, std::vector<Pipeline> start, const LocalSearchLimits& limits, std::uint64_t stream)
      : groups_(groups),
        objective_(groups.problem().options.objective),
        may_idle_(groups.problem().options.use_devices == UseDevices::may_idle),
        limits_(limits),
        dice_(groups.problem().options.seed, stream),
        pipelines_(std::move(start)) {
    const std::vector<int> all = groups.problem().devices();
    std::vector<bool> busy(cluster().devices.size(), false);
    for (const auto& pipeline : pipelines_) {
      members_.push_back(pipeline.used_devices());
      for (const int device : members_.back()) busy[static_cast<std::size_t>(device)] = true;
    }
    for (const int device : all)
      if (!busy[static_cast<std::size_t>(device)]) idle_.push_back(device);
    total_ = total_worth(pipelines_, objective_);
  }

  Grouping run() {
    Grouping best{pipelines_, false, 0};
    double best_total = total_;
    for (std::int64_t step = 0; step < limits_.proposals && evaluated_ < limits_.evaluated; ++step) {
      if (Clock::now() >= groups_.problem().deadline) break;
      const double left = 1 - static_cast<double>(step) / static_cast<double>(limits_.proposals);
      const double mean = total_ / static_cast<double>(std::max<std::size_t>(1, pipelines_.size()));
      // A loss that the temperature would accept; a gain needs none.
      slack_ = -start_temperature * left * mean * std::log(std::max(dice_.uniform(), 1e-12));
      propose();
      if (total_ > best_total * (1 + 1e-9)) {
        best_total = total_;
        best.pipelines = pipelines_;
      }
    }
    best.evaluated = evaluated_;
    return best;
  }

 private:
  const Cluster& cluster() const { return groups_.problem().cluster; }
  const std::vector<int>& members(std::size_t place) const { return place == idle_place ? idle_ : members_[place]; }

  void propose() {
    const double kind = dice_.uniform();
    const std::size_t from = any_place();
    if (members(from).empty()) return;
    if (kind < 0.15)
      split(from);
    else if (kind < 0.25)
      merge(from);
    else if (kind < 0.60)
      move(from);
    else
      swap(from);
  }

  // Idle devices weigh as much as one more pipeline.
  std::size_t any_place() {
    const std::size_t place = dice_.below(pipelines_.size() + (idle_.empty() ? 0 : 1));
    return place == pipelines_.size() ? idle_place : place;
  }

  // Mostly of the same site: pipelines over slow links are rarely good.
  std::size_t neighbour_of(int device, std::size_t but) {
    const auto& site = cluster().machines[cluster().devices[device].machine].site;
    std::size_t place = idle_place;
    for (int attempt = 0; attempt < 8; ++attempt) {
      place = any_place();
      if (place == but || members(place).empty()) continue;
      const int other = members(place)[dice_.below(members(place).size())];
      if (cluster().machines[cluster().devices[other].machine].site == site || dice_.uniform() < 0.05) return place;
    }
    return place;
  }

  // Some devices of one type and machine: one, two, half of them or all.
  std::vector<int> bundle(std::size_t place) {
    const auto& devices = members(place);
    const Device& like = cluster().devices[devices[dice_.below(devices.size())]];
    std::vector<int> alike;
    for (const int device : devices)
      if (cluster().devices[device].machine == like.machine && cluster().devices[device].type == like.type)
        alike.push_back(device);
    const std::size_t sizes[] = {1, 2, (alike.size() + 1) / 2, alike.size()};
    alike.resize(std::min(alike.size(), sizes[dice_.below(4)]));
    return alike;
  }

  void move(std::size_t from) {
    const std::vector<int> taken = bundle(from);
    const std::size_t to = neighbour_of(taken.front(), from);
    if (to == from || (to == idle_place && from == idle_place)) return;
    change(from, without(members(from), taken), to, joined(members(to), taken));
  }

  void swap(std::size_t a) {
    const std::vector<int> from_a = bundle(a);
    const std::size_t b = neighbour_of(from_a.front(), a);
    if (b == a || members(b).empty()) return;
    const std::vector<int> from_b = bundle(b);
    change(a, joined(without(members(a), from_a), from_b), b, joined(without(members(b), from_b), from_a));
  }

  void merge(std::size_t a) {
    if (a == idle_place) return;
    const std::size_t b = neighbour_of(members_[a].front(), a);
    if (b == a || b == idle_place) return;
    change(a, joined(members_[a], members_[b]), b, {});
  }

  // In two, at a random place of the list, which keeps machines together; or a bundle of idle devices becomes a
  // pipeline of its own.
  void split(std::size_t place) {
    const auto& devices = members(place);
    if (devices.size() < 2) return;
    const auto middle = devices.begin() + static_cast<std::ptrdiff_t>(1 + dice_.below(devices.size() - 1));
    const std::vector<int> head(devices.begin(), middle), tail(middle, devices.end());
    if (place == idle_place)
      change(idle_place, tail, pipelines_.size(), head);
    else
      change(place, head, pipelines_.size(), tail);
  }

  // Gives two places new devices, if that is not worse than the temperature accepts. A place beyond the last is a new
  // pipeline; one without devices goes.
  void change(std::size_t a, const std::vector<int>& devices_a, std::size_t b, const std::vector<int>& devices_b) {
    const double before = worth_at(a) + worth_at(b);
    const double needed = before - slack_;
    if (most(a, devices_a) + most(b, devices_b) < needed) return;
    const Pipeline first = searched(a, devices_a), second = searched(b, devices_b);
    const double after = worth(first, objective_) + worth(second, objective_);
    if (after < needed) return;
    std::vector<int> idle = idle_;
    if (a == idle_place) idle = devices_a;
    if (b == idle_place) idle = devices_b;
    for (const auto& [place, pipeline, devices] :
         {std::tuple(a, &first, &devices_a), std::tuple(b, &second, &devices_b)}) {
      if (place == idle_place) continue;
      const std::vector<int> used = worth(*pipeline, objective_) > 0 ? pipeline->used_devices() : std::vector<int>{};
      idle = joined(std::move(idle), without(*devices, used));
    }
    if (!may_idle_ && !idle.empty()) return;
    idle_ = std::move(idle);
    total_ += after - before;
    put(a, first);
    put(b, second);
    for (std::size_t place = pipelines_.size(); place-- > 0;)
      if (members_[place].empty()) {
        pipelines_.erase(pipelines_.begin() + static_cast<std::ptrdiff_t>(place));
        members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(place));
      }
  }

  double worth_at(std::size_t place) const {
    return place < pipelines_.size() ? worth(pipelines_[place], objective_) : 0;
  }
  double most(std::size_t place, const std::vector<int>& devices) const {
    if (place == idle_place || !groups_.may_fit(devices)) return 0;
    return groups_.most_requests_per_s(devices);
  }
  Pipeline searched(std::size_t place, const std::vector<int>& devices) {
    if (place == idle_place || devices.empty()) return {};
    Pipeline pipeline = groups_.best(devices);
    if (asked_.insert(pipeline.answer.get()).second) evaluated_ += pipeline.answer->part.evaluated;
    return pipeline;
  }
  void put(std::size_t place, const Pipeline& pipeline) {
    if (place == idle_place) return;
    if (place >= pipelines_.size()) {
      pipelines_.emplace_back();
      members_.emplace_back();
      place = pipelines_.size() - 1;
    }
    const bool serves = worth(pipeline, objective_) > 0;
    pipelines_[place] = pipeline;
    members_[place] = serves ? pipeline.used_devices() : std::vector<int>{};
  }

  Groups& groups_;
  Objective objective_;
  bool may_idle_;
  LocalSearchLimits limits_;
  RandomStream dice_;
  std::vector<Pipeline> pipelines_;
  std::vector<std::vector<int>> members_;  // devices in use, by pipeline
  std::vector<int> idle_;
  double total_ = 0;
  double slack_ = 0;
  std::set<const GroupAnswer*> asked_;
  std::int64_t evaluated_ = 0;
};

}  // namespace

Grouping improve(Groups& groups, std::vector<Pipeline> start, const LocalSearchLimits& limits, std::uint64_t stream) {
  return LocalSearch(groups, std::move(start), limits, stream).run();
}

}  // namespace motley
