#include "motley/planner/serve/replan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/standby.hpp"

namespace motley {
namespace {

// Requests wait: each of the two searches gets little time.
constexpr double replan_effort = 0.05;
constexpr double search_s = 0.4;

// By how much a plan must serve more, to take a route apart that could go on.
constexpr double worth_reloading = 1.05;

bool touches(const ServePlan& plan, const Route& route, const std::set<std::string>& devices) {
  return std::any_of(route.path.begin(), route.path.end(), [&](const Hop& hop) {
    const auto& members = plan.stage(hop.stage).devices;
    return std::any_of(members.begin(), members.end(), [&](const auto& device) { return devices.contains(device); });
  });
}

std::set<std::string> devices_of(const ServePlan& plan, const Route& route) {
  std::set<std::string> devices;
  for (const auto& hop : route.path) {
    const auto& members = plan.stage(hop.stage).devices;
    devices.insert(members.begin(), members.end());
  }
  return devices;
}

// Routes that are left when some devices are gone, and with them every route that shares a stage with one that goes.
std::vector<Route> untouched(const ServePlan& plan, std::set<std::string> gone) {
  std::vector<Route> routes = plan.routes;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto route = routes.begin(); route != routes.end();)
      if (touches(plan, *route, gone)) {
        gone.merge(devices_of(plan, *route));
        route = routes.erase(route);
        changed = true;
      } else {
        ++route;
      }
  }
  return routes;
}

// Requests per second that a plan expects of a route: weights are proportional to them.
double rate_of(const ServePlan& plan, const Route& route) {
  double weights = 0;
  for (const auto& other : plan.routes) weights += other.weight;
  return plan.predicted.requests_per_s * route.weight / weights;
}

// The kept routes and the new ones, as one plan.
ServePlan merged(const ServePlan& before, const std::vector<Route>& kept, const std::optional<ServePlan>& made,
                 const std::vector<std::string>& lost, const CostOptions& cost) {
  ServePlan plan = before;
  plan.stages.clear();
  plan.routes.clear();
  plan.unused.clear();
  std::set<std::string> stages, used;
  for (const auto& route : kept) {
    plan.routes.push_back(route);
    plan.routes.back().weight = rate_of(before, route);
    for (const auto& hop : route.path)
      if (stages.insert(hop.stage).second) plan.stages.push_back(before.stage(hop.stage));
  }
  std::map<std::string, std::string> names;  // of the new stages, by what they were made as
  if (made)
    for (const auto& route : made->routes) {
      int number = 0;
      const auto taken = [&](const std::string& id) {
        return std::any_of(before.routes.begin(), before.routes.end(), [&](const Route& r) { return r.id == id; }) ||
               std::any_of(plan.routes.begin(), plan.routes.end(), [&](const Route& r) { return r.id == id; });
      };
      while (taken(fmt::format("r{}", number))) ++number;
      Route renamed = route;
      renamed.id = fmt::format("r{}", number);
      renamed.weight = rate_of(*made, route);
      for (std::size_t i = 0; i < renamed.path.size(); ++i) {
        // Routes may share a stage: it is called after the first of them.
        const auto [name, is_new] = names.try_emplace(renamed.path[i].stage, fmt::format("{}/s{}", renamed.id, i));
        if (is_new) plan.stages.push_back(made->stage(name->first));
        if (is_new) plan.stages.back().id = name->second;
        renamed.path[i].stage = name->second;
      }
      plan.routes.push_back(std::move(renamed));
    }
  double most = 0;
  for (const auto& route : plan.routes) most = std::max(most, route.weight);
  for (auto& route : plan.routes) route.weight /= most;

  for (const auto& stage : plan.stages) used.insert(stage.devices.begin(), stage.devices.end());
  for (const auto& device : plan.cluster.devices) {
    if (used.contains(device.name)) continue;
    std::string reason = "no better pipeline uses it";
    if (made)
      for (const auto& unused : made->unused)
        if (unused.device == device.name) reason = unused.reason;
    if (std::find(lost.begin(), lost.end(), device.name) != lost.end()) reason = "lost";
    plan.unused.push_back({device.name, std::move(reason)});
  }
  predict(plan, cost);
  return plan;
}

}  // namespace

ServeOutcome replan_serve(const ServePlan& before, const std::vector<std::string>& lost, ServeOptions options) {
  const auto start = Clock::now();
  for (const auto& device : lost) before.cluster.find_device(device);
  options.step = before.step;
  options.profile = before.profile;
  options.front = Front::skip;
  options.roles = StageRoles::both;
  options.effort = replan_effort;
  options.deadline_s = std::min(options.deadline_s, search_s);
  options.weight_type = before.stages.empty() ? options.weight_type : before.stages.front().weight_type;
  options.weight_types = weight_types_of(before);
  options.kv_type = before.stages.empty() ? options.kv_type : before.stages.front().kv_type;
  if (const std::optional<DType> type = crossing_type_of(before)) options.crossing_type = type;
  if (const std::optional<std::int64_t> bytes = standby_bytes_of(before)) options.standby_bytes = bytes;
  // A part of the deployment cannot be judged by the rate of the whole.
  Workload workload = before.workload;
  for (auto& request : workload.classes) request.rate_per_s = 0;

  const auto plan_beside = [&](const std::vector<Route>& kept) {
    ServeOptions others = options;
    std::set<std::string> excluded(lost.begin(), lost.end());  // routes may share devices
    for (const auto& route : kept) excluded.merge(devices_of(before, route));
    if (excluded.size() == before.cluster.devices.size()) return ServeOutcome{};
    others.excluded.assign(excluded.begin(), excluded.end());
    return plan_serve(before.cluster, before.model, workload, others);
  };

  std::vector<Route> kept = untouched(before, {lost.begin(), lost.end()});
  ServeOutcome outcome = plan_beside(kept);
  if (!outcome.plan && kept.empty()) return outcome;
  ServePlan plan = merged(before, kept, outcome.plan, lost, options.cost);
  if (!kept.empty()) {
    const auto by_weight = [](const Route& a, const Route& b) { return a.weight < b.weight; };
    kept.erase(std::min_element(kept.begin(), kept.end(), by_weight));
    outcome = plan_beside(kept);
    if (outcome.plan) {
      ServePlan other = merged(before, kept, outcome.plan, lost, options.cost);
      if (other.predicted.requests_per_s > worth_reloading * plan.predicted.requests_per_s) plan = std::move(other);
    }
  }
  plan.search = {.planner = "serve/replan",
                 .objective = before.search.objective,
                 .cost = options.cost.form,
                 .bound = {},
                 .gap = {}};
  plan.search.seed = static_cast<std::int64_t>(options.seed);
  plan.search.elapsed_s = seconds_since(start);
  return {.plan = std::move(plan), .reason = {}, .hint = {}, .front = {}};
}

std::optional<DType> crossing_type_of(const ServePlan& plan) {
  for (const auto& route : plan.routes)
    for (const auto& hop : route.path)
      if (hop.activation_type) return hop.activation_type;
  return {};
}

WeightMoves weight_moves(const ServePlan& before, const ServePlan& after) {
  struct Place {
    const Stage* stage;
    std::size_t rank;
  };
  std::map<std::string, Place> places;
  for (const auto& stage : before.stages)
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) places[stage.devices[rank]] = {&stage, rank};
  const Architecture& arch = after.model.arch;
  WeightMoves moves;
  for (const auto& stage : after.stages) {
    const std::vector<Shard> shards = stage_shards(arch, stage);
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
      const auto bytes_of_layers = [&](const LayerRange& layers) {
        return sum_over_layers(arch, layers, [&](std::int64_t layer) {
          return block_bytes(arch, layer, shards[rank], stage.weight_type);
        });
      };
      std::int64_t kept = 0;
      if (const auto found = places.find(stage.devices[rank]); found != places.end()) {
        const Stage& old = *found->second.stage;
        const bool same = old.devices.size() == stage.devices.size() && old.shares == stage.shares &&
                          old.expert_shares == stage.expert_shares && found->second.rank == rank &&
                          old.weight_type == stage.weight_type;
        if (same)
          for (const LayerRange& held : held_layers(old, stage.layers)) kept += bytes_of_layers(held);
      }
      moves.kept_bytes += kept;
      moves.loaded_bytes += bytes_of_layers(stage.layers) - kept;
    }
  }
  return moves;
}

namespace {

void swap_devices(ServePlan& plan, const std::string& a, const std::string& b) {
  const auto swap = [&](std::string& device) {
    if (device == a)
      device = b;
    else if (device == b)
      device = a;
  };
  for (Stage& stage : plan.stages) std::ranges::for_each(stage.devices, swap);
  for (UnusedDevice& unused : plan.unused) swap(unused.device);
}

}  // namespace

ServePlan keep_places(ServePlan plan, const ServePlan& before, const std::vector<std::string>& excluded,
                      const CostOptions& cost) {
  constexpr double as_good = 0.98;
  const bool stands_by = standby_bytes_of(plan).has_value();  // chosen for the devices as they stand in the end
  for (Stage& stage : plan.stages) stage.standby_weights.clear();
  const double least = as_good * plan.predicted.tokens_per_s;
  std::vector<std::string> devices;
  for (const Stage& stage : plan.stages) devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  const std::size_t used = devices.size();
  for (const UnusedDevice& unused : plan.unused)
    if (std::ranges::count(excluded, unused.device) == 0) devices.push_back(unused.device);

  std::int64_t loaded = weight_moves(before, plan).loaded_bytes;
  for (bool better = true; better;) {
    better = false;
    for (std::size_t a = 0; a < used; ++a)
      for (std::size_t b = a + 1; b < devices.size(); ++b) {
        swap_devices(plan, devices[a], devices[b]);
        if (const std::int64_t bytes = weight_moves(before, plan).loaded_bytes; bytes < loaded) {
          const ServePrediction predicted = std::exchange(plan.predicted, {});
          predict(plan, cost);
          if (plan.predicted.tokens_per_s >= least && verify(plan).empty()) {
            std::swap(devices[a], devices[b]);
            loaded = bytes;
            better = true;
            continue;
          }
          plan.predicted = predicted;
        }
        swap_devices(plan, devices[a], devices[b]);
      }
  }
  if (stands_by) fill_standby(plan);
  return plan;
}

}  // namespace motley
