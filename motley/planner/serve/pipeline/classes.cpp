#include "motley/planner/serve/pipeline/classes.hpp"

#include <algorithm>
#include <numeric>

#include "motley/base/rounding.hpp"
#include "motley/cost/form/hop.hpp"

namespace motley {
namespace {

// Of a pair: sums inside a stage take the link, and rows between stages the hop.
struct Between {
  PathSpeed link;
  HopSpeed hop;
  bool operator==(const Between&) const = default;
};

// Links of all pairs of some devices, looked up once.
class Links {
 public:
  Links(const Cluster& cluster, const std::vector<int>& devices)
      : count_(devices.size()), position_(cluster.devices.size()), links_(count_ * count_) {
    for (std::size_t i = 0; i < count_; ++i) position_[devices[i]] = i;
    for (std::size_t from = 0; from < count_; ++from)
      for (std::size_t to = 0; to < count_; ++to)
        if (from != to) {
          const PathSpeed link = cluster.link(devices[from], devices[to]);
          links_[from * count_ + to] = {link, hop_over(link, cluster, devices[from], devices[to])};
        }
  }
  const Between& operator()(int from, int to) const { return links_[position_[from] * count_ + position_[to]]; }

 private:
  std::size_t count_;
  std::vector<std::size_t> position_;  // of a device among those
  std::vector<Between> links_;
};

bool same_type(const Cluster& cluster, int a, int b) { return cluster.devices[a].type == cluster.devices[b].type; }
bool same_machine(const Cluster& cluster, int a, int b) {
  return cluster.devices[a].machine == cluster.devices[b].machine;
}

// Of a machine without host memory or disk nothing else is asked.
bool same_tiers(const Cluster& cluster, int a, int b) {
  if (same_machine(cluster, a, b)) return true;
  const MemoryTiers one = tiers_of(cluster, a), other = tiers_of(cluster, b);
  const auto none = [](const MemoryTiers& tiers) { return tiers.host_bytes == 0 && !tiers.disk; };
  if (none(one) || none(other)) return none(one) && none(other);
  const auto devices = [&](int device) { return cluster.machines[cluster.devices[device].machine].devices.size(); };
  return one == other && devices(a) == devices(b);
}

bool as_far_from_driver(const Cluster& cluster, int a, int b) {
  return cluster.from_driver(a) == cluster.from_driver(b) && cluster.to_driver(a) == cluster.to_driver(b);
}

// Exchanging the units changes no link among `devices`, nor to the driver. The devices inside a unit are alike already.
bool exchangeable(const Cluster& cluster, const Links& links, const std::vector<int>& devices, const Unit& a,
                  const Unit& b) {
  const auto inside = [](const Unit& unit, int device) {
    return std::find(unit.begin(), unit.end(), device) != unit.end();
  };
  if (links(a[0], b[0]) != links(b[0], a[0]) || !as_far_from_driver(cluster, a[0], b[0])) return false;
  if (a.size() > 1 && links(a[0], a[1]) != links(b[0], b[1])) return false;
  return std::all_of(devices.begin(), devices.end(), [&](int other) {
    return inside(a, other) || inside(b, other) ||
           (links(a[0], other) == links(b[0], other) && links(other, a[0]) == links(other, b[0]));
  });
}

std::vector<DeviceClass> group_units(const Cluster& cluster, const Links& links, const std::vector<int>& devices,
                                     Alike alike, std::vector<Unit> units) {
  std::vector<DeviceClass> classes;
  for (auto& unit : units) {
    const auto belongs = [&](const DeviceClass& candidate) {
      const Unit& like = candidate.units.front();
      if (unit.size() != like.size() || !same_type(cluster, unit[0], like[0])) return false;
      if (!same_tiers(cluster, unit[0], like[0])) return false;
      const bool together = same_machine(cluster, unit[0], like[0]);
      if (candidate.units.size() > 1 && together != candidate.one_machine) return false;
      for (const auto& member : candidate.units)
        if (same_machine(cluster, unit[0], member[0]) != together) return false;
      return alike == Alike::by_type || exchangeable(cluster, links, devices, unit, like);
    };
    const auto found = std::find_if(classes.begin(), classes.end(), belongs);
    if (found == classes.end()) {
      classes.push_back({{std::move(unit)}, true});
      continue;
    }
    found->one_machine = same_machine(cluster, unit[0], found->units[0][0]);
    found->units.push_back(std::move(unit));
  }
  return classes;
}

// Classes of single devices; links to all of `among` count.
std::vector<DeviceClass> collapse_singly(const Cluster& cluster, const Links& links, const std::vector<int>& devices,
                                         const std::vector<int>& among, Alike alike) {
  std::vector<Unit> units;
  for (const int device : devices) units.push_back({device});
  return group_units(cluster, links, among, alike, std::move(units));
}

bool machines_exchangeable(const Cluster& cluster, const Links& links, const Machine& a, const Machine& b) {
  if (a.devices.size() != b.devices.size()) return false;
  for (std::size_t i = 0; i < a.devices.size(); ++i) {
    if (!same_type(cluster, a.devices[i], b.devices[i])) return false;
    for (std::size_t j = 0; j < a.devices.size(); ++j) {
      if (i != j && links(a.devices[i], a.devices[j]) != links(b.devices[i], b.devices[j])) return false;
      if (links(a.devices[i], b.devices[j]) != links(b.devices[i], a.devices[j])) return false;
    }
    for (std::size_t other = 0; other < cluster.devices.size(); ++other) {
      const int device = static_cast<int>(other);
      const Machine& machine = cluster.machines[cluster.devices[other].machine];
      if (machine.name == a.name || machine.name == b.name) continue;
      if (links(a.devices[i], device) != links(b.devices[i], device) ||
          links(device, a.devices[i]) != links(device, b.devices[i]))
        return false;
    }
  }
  return true;
}

// Deals the machines of one kind out over the parts.
void deal(const Cluster& cluster, const Links& links, const std::vector<const Machine*>& kind,
          std::vector<std::vector<int>>& parts) {
  const std::size_t whole = kind.size() / parts.size();
  if (whole > 0) {
    for (std::size_t part = 0; part < parts.size(); ++part)
      for (std::size_t i = 0; i < whole; ++i)
        parts[part].insert(parts[part].end(), kind[part * whole + i]->devices.begin(),
                           kind[part * whole + i]->devices.end());
    return;
  }
  const std::vector<int> all = all_devices(cluster);
  const std::size_t pieces = ceil_div(parts.size(), kind.size());  // of each machine
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const Machine& machine = *kind[part / pieces];
    for (const auto& alike : collapse_singly(cluster, links, machine.devices, all, Alike::by_links)) {
      const std::size_t each = alike.units.size() / pieces;
      for (std::size_t i = 0; i < each; ++i) parts[part].push_back(alike.units[part % pieces * each + i][0]);
    }
  }
}

}  // namespace

std::vector<int> all_devices(const Cluster& cluster) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

std::vector<DeviceClass> collapse(const Cluster& cluster, const std::vector<int>& devices, Alike alike, int unit_size) {
  const Links links(cluster, devices);
  std::vector<DeviceClass> classes = collapse_singly(cluster, links, devices, devices, alike);
  if (unit_size == 1) return classes;
  std::vector<Unit> units;
  for (const auto& single : classes) {
    const std::size_t size = single.one_machine ? static_cast<std::size_t>(unit_size) : 1;
    for (std::size_t first = 0; first < single.units.size(); first += size) {
      units.emplace_back();
      for (std::size_t i = first; i < std::min(first + size, single.units.size()); ++i)
        units.back().push_back(single.units[i][0]);
    }
  }
  return group_units(cluster, links, devices, alike, std::move(units));
}

std::vector<std::vector<int>> equal_parts(const Cluster& cluster, int parts) {
  const Links links(cluster, all_devices(cluster));
  std::vector<std::vector<const Machine*>> kinds;
  for (const auto& machine : cluster.machines) {
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) {
      return machines_exchangeable(cluster, links, *kind.front(), machine);
    });
    if (found == kinds.end())
      kinds.push_back({&machine});
    else
      found->push_back(&machine);
  }
  std::vector<std::vector<int>> result(static_cast<std::size_t>(parts));
  for (const auto& kind : kinds) deal(cluster, links, kind, result);
  if (result.front().empty()) return {};
  return result;
}

}  // namespace motley
