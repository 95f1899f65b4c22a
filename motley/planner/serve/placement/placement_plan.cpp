#include "motley/planner/serve/placement/placement_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "motley/base/rounding.hpp"
#include "motley/planner/serve/grouping/bound.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"

namespace motley {
namespace {

constexpr std::size_t most_routes = 100;
constexpr double least_part = 1e-3;  // of the flow: ways with less are not worth a route

// ---- nodes ----

const Machine& machine_of(const Cluster& cluster, int device) {
  return cluster.machines[cluster.devices[device].machine];
}

bool knows_type(const Profile& profile, const std::string& type) {
  return std::any_of(profile.layer_rate.begin(), profile.layer_rate.end(),
                     [&](const LayerRate& rate) { return find_layer_rate(profile, type, rate.tp) == &rate; });
}

// Sizes that the profile has rates for, where it knows the type; otherwise powers of two.
bool size_allowed(const Profile& profile, const std::string& type, std::int64_t size) {
  return knows_type(profile, type) ? find_layer_rate(profile, type, size) != nullptr : (size & (size - 1)) == 0;
}

// The profile's list ends where the group can hold no more.
std::int64_t most_measured_layers(const Profile& profile, const Cluster& cluster, const std::vector<int>& devices) {
  const DeviceType& type = cluster.type_of(devices.front());
  for (const int device : devices)
    if (cluster.type_of(device).name != type.name) return std::numeric_limits<std::int64_t>::max();
  const LayerRate* rate = find_layer_rate(profile, type.name, std::ssize(devices));
  return rate ? std::ssize(rate->tokens_per_s) : std::numeric_limits<std::int64_t>::max();
}

// Devices of one type in one machine: the unit that is cut into nodes.
std::vector<std::vector<int>> alike_in_machines(const ServeProblem& problem) {
  std::map<std::pair<int, int>, std::vector<int>> found;
  for (const int device : problem.devices())
    found[{problem.cluster.devices[device].machine, problem.cluster.devices[device].type}].push_back(device);
  std::vector<std::vector<int>> lists;
  for (auto& [key, list] : found) lists.push_back(std::move(list));
  return lists;
}

// As many groups of `size` (or of the degree that the options fix for the machine) as there are; what is left over in
// the largest sizes that are allowed.
std::vector<std::vector<int>> cut(const ServeProblem& problem, const std::vector<int>& devices, std::int64_t size) {
  const std::string& type = problem.cluster.type_of(devices.front()).name;
  const auto fixed = problem.options.degrees.find(machine_of(problem.cluster, devices.front()).name);
  const bool is_fixed = fixed != problem.options.degrees.end();
  if (is_fixed) size = fixed->second;
  std::vector<std::vector<int>> groups;
  for (auto from = devices.begin(); from != devices.end() && size > 0;) {
    const bool fits = size <= devices.end() - from && size <= problem.model.arch.heads;
    if (fits && (is_fixed || size_allowed(problem.options.profile, type, size))) {
      groups.emplace_back(from, from + size);
      from += size;
    } else if (is_fixed) {
      break;
    } else {
      --size;
    }
  }
  return groups;
}

class NodeRates {
 public:
  explicit NodeRates(const ServeProblem& problem)
      : problem_(problem),
        rates_(problem.cluster, problem.model, problem.workload, problem.options.profile, problem.options.step,
               problem.options.cost),
        form_(problem.form(problem.point(1))) {}

  PlacementNode node(const TensorGroup& group) {
    const int type = problem_.cluster.devices[group.devices.front()].type;
    const bool alike = std::all_of(group.devices.begin(), group.devices.end(),
                                   [&](int device) { return problem_.cluster.devices[device].type == type; });
    if (!alike) return make(group);
    const auto key = std::tuple(type, group.degree(), group.link.latency_s, group.link.bandwidth_bytes_per_s);
    auto found = known_.find(key);
    if (found == known_.end()) found = known_.emplace(key, make(group)).first;
    return found->second;
  }
  double link(const TensorGroup& from, const TensorGroup& to) const { return rates_.link(from, to); }

 private:
  PlacementNode make(const TensorGroup& group) {
    PlacementNode node;
    for (int ends = 0; ends < 4; ++ends)
      node.most_layers[ends] = most_layers(group, {(ends & 1) != 0, (ends & 2) != 0}, 1);
    const std::int64_t most =
        std::min(node.most_layers[0], most_measured_layers(problem_.options.profile, problem_.cluster, group.devices));
    for (std::int64_t layers = 1; layers <= most; ++layers)
      node.tokens_per_s.push_back(
          rates_.stage({.group = &group, .ends = {}, .layers = mean_layer_counts(problem_.model.arch, layers)},
                       sequences(group, layers)));
    return node;
  }

  // By the form and by the true bytes, as published forms count their own.
  std::int64_t most_layers(const TensorGroup& group, StageEnds ends, std::int64_t in_flight) const {
    const ServePoint point = problem_.point(1);
    const std::int64_t fits =
        most_layers_in_memory(problem_.model.arch, group, ends, room_of(point, in_flight), point.step);
    return std::min(form_->most_layers(group, ends, in_flight).value_or(fits), fits);
  }

  // Requests that the memory left by this many layers has room for, spread over a pipeline of stages of that size.
  std::int64_t sequences(const TensorGroup& group, std::int64_t layers) const {
    std::int64_t fits = 1, too_many = problem_.options.max_batch + 1;
    while (too_many - fits > 1) {
      const std::int64_t middle = (fits + too_many) / 2;
      (most_layers(group, {}, middle) >= layers ? fits : too_many) = middle;
    }
    const std::int64_t stages = ceil_div(problem_.model.arch.layers, layers);
    return std::clamp<std::int64_t>(fits / stages, 1, problem_.options.step.max_sequences);
  }

  const ServeProblem& problem_;
  TokenRates rates_;
  std::unique_ptr<ServeForm> form_;
  std::map<std::tuple<int, int, double, double>, PlacementNode> known_;
};

// Nodes that no link tells apart stand at one place. What may tell: the site; the machine, where it has several nodes
// or links of its own; the type, where the profile has links by type; every device, where a matrix was measured.
std::vector<std::string> place_names(const ServeProblem& problem, const std::vector<TensorGroup>& groups) {
  const Cluster& cluster = problem.cluster;
  const auto& network = cluster.description.network;
  const Profile& profile = problem.options.profile;
  const bool measured = !profile.link_tokens.empty() || !profile.link_rate.empty();
  std::map<std::string, int> nodes_in;
  for (const auto& group : groups) ++nodes_in[machine_of(cluster, group.devices.front()).name];
  std::set<std::string> named;
  for (const auto& link : cluster.description.links) named.insert(link.between.begin(), link.between.end());
  std::vector<std::string> names;
  for (const auto& group : groups) {
    const int device = group.devices.front();
    const Machine& machine = machine_of(cluster, device);
    std::string name = machine.site;
    if (nodes_in[machine.name] > 1 || named.contains(machine.name) || measured || network.matrix)
      name += "\n" + machine.name;
    if (measured) name += "\n" + cluster.type_of(device).name;
    if (network.matrix) name += "\n" + cluster.devices[device].name;
    names.push_back(std::move(name));
  }
  return names;
}

void add_links(const ServeProblem& problem, const NodeRates& rates, PlacementGroups& built) {
  std::map<std::string, int> places;
  const std::vector<std::string> names = place_names(problem, built.groups);
  for (const auto& name : names) places.emplace(name, 0);
  int count = 0;
  for (auto& [name, number] : places) number = count++;
  std::vector<std::vector<int>> members(count);
  for (std::size_t i = 0; i < names.size(); ++i) {
    built.problem.nodes[i].place = places[names[i]];
    members[places[names[i]]].push_back(static_cast<int>(i));
  }
  built.problem.link.assign(count, std::vector<double>(count, FlowNetwork::unlimited));
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) {
      const int a = members[from].front(), b = from == to ? members[to].back() : members[to].front();
      if (a == b) continue;
      TensorGroup sender = built.groups[a];
      sender.sends_in = problem.sent_in(sender.devices, built.groups[b].devices);
      built.problem.link[from][to] = rates.link(sender, built.groups[b]);
    }
  // What leaves a node goes through its fastest link, whichever node gets it.
  for (auto& node : built.problem.nodes) {
    double fastest = 0;
    for (int to = 0; to < count; ++to)
      if (to != node.place || members[to].size() > 1) fastest = std::max(fastest, built.problem.link[node.place][to]);
    for (std::int64_t k = 1; k <= std::ssize(node.tokens_per_s) && k < built.problem.layers; ++k)
      node.tokens_per_s[k - 1] = std::min(node.tokens_per_s[k - 1], fastest);
  }
}

PlacementGroups build(const ServeProblem& problem, NodeRates& rates, std::vector<std::vector<int>> groups,
                      std::vector<RankShares> shares) {
  PlacementGroups built;
  built.problem.layers = problem.model.arch.layers;
  built.problem.handover = problem.options.handover;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const DType weights = problem.weights_on(groups[i]);
    TensorGroup group = make_group(problem.cluster, problem.model.arch, std::move(groups[i]), shares[i].shares, weights,
                                   problem.kv_type, problem.options.step, shares[i].expert_shares);
    PlacementNode node = rates.node(group);
    if (node.tokens_per_s.empty()) continue;
    built.groups.push_back(std::move(group));
    built.shares.push_back(std::move(shares[i]));
    built.problem.nodes.push_back(std::move(node));
  }
  add_links(problem, rates, built);
  built.starts = stage_placements(built.problem, problem.deadline);
  return built;
}

PlacementGroups build(const ServeProblem& problem, NodeRates& rates, std::int64_t size) {
  std::vector<std::vector<int>> groups;
  std::vector<RankShares> shares;
  for (const auto& alike : alike_in_machines(problem))
    for (auto& devices : cut(problem, alike, size)) {
      const Architecture& arch = problem.model.arch;
      const auto degree = static_cast<int>(devices.size());
      shares.push_back(
          {uneven_shares(arch, degree), choose_expert_shares(arch, degree, {}, problem.weights_on(devices))});
      groups.push_back(std::move(devices));
    }
  return build(problem, rates, std::move(groups), std::move(shares));
}

// ---- plan ----

ServePlan describe(const ServeProblem& problem) {
  ServePlan plan;
  plan.model = problem.model;
  plan.cluster = problem.cluster;
  plan.workload = problem.workload;
  plan.profile = problem.options.profile;
  plan.step = problem.options.step;
  return plan;
}

void add_stages(const ServeProblem& problem, const PlacementGroups& built, const Placement& placement,
                const std::vector<PlacementFlow::Way>& ways, ServePlan& plan) {
  std::set<int> used, first, last;
  for (const auto& way : ways) {
    used.insert(way.nodes.begin(), way.nodes.end());
    first.insert(way.nodes.front());
    last.insert(way.nodes.back());
  }
  std::vector<int> order(used.begin(), used.end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(placement[a].first, placement[a].end) < std::pair(placement[b].first, placement[b].end);
  });
  std::map<int, std::string> ids;
  for (const int node : order) {
    Stage stage{.id = fmt::format("s{}", ids.size()), .layers = placement[node], .devices = {}, .shares = {}};
    for (const int device : built.groups[node].devices) stage.devices.push_back(problem.cluster.devices[device].name);
    stage.shares = built.shares[node].shares;
    stage.expert_shares = built.shares[node].expert_shares;
    stage.embedding = first.contains(node);
    stage.head = last.contains(node);
    stage.weight_type = problem.weights_on(built.groups[node].devices);
    stage.kv_type = problem.kv_type;
    ids[node] = stage.id;
    plan.stages.push_back(std::move(stage));
  }
  for (const auto& way : ways) {
    Route route{.id = fmt::format("r{}", plan.routes.size()), .path = {}, .weight = way.tokens_per_s};
    std::int64_t next = 0;
    for (const int node : way.nodes) {
      route.path.push_back({ids[node], {next, placement[node].end}});
      next = placement[node].end;
    }
    plan.routes.push_back(std::move(route));
  }
}

// Routes that share stages, directly or through others, share KV blocks: the tightest stage decides for all of them.
// They divide the requests in flight by their weights.
void fill_shared_kv(const ServeProblem& problem, ServePlan& plan) {
  std::map<std::string, std::string> parent;  // stages in one set have one root
  const auto root = [&](std::string id) {
    while (parent.at(id) != id) id = parent.at(id);
    return id;
  };
  for (const auto& stage : plan.stages) parent[stage.id] = stage.id;
  for (const auto& route : plan.routes)
    for (const auto& hop : route.path) parent[root(hop.stage)] = root(route.path.front().stage);

  struct Set {
    std::int64_t room = std::numeric_limits<std::int64_t>::max();  // tokens
    std::int64_t routes = 0, slots = 0;
    double weight = 0;
    std::vector<Stage> stages = {};
  };
  std::map<std::string, Set> sets;
  const auto set_of = [&](const Route& route) -> Set& { return sets[root(route.path.front().stage)]; };
  for (const auto& stage : plan.stages) sets[root(stage.id)].stages.push_back(stage);
  for (const auto& route : plan.routes) {
    Set& set = set_of(route);
    set.weight += route.weight;
    ++set.routes;
    set.slots += most_kv_slots(plan, route);
  }
  const std::int64_t most_batch = problem.options.max_batch;
  for (auto& [id, set] : sets) {
    set.slots = kv_slots(plan, set.stages, set.slots);
    const std::int64_t most = set.routes * most_kv_tokens(plan, most_batch);
    for (Stage& stage : set.stages) {
      stage.kv_sequences = slots_of(plan, stage, set.slots);
      set.room = std::min(set.room, kv_room_tokens(plan, stage, most));
    }
  }
  for (auto& stage : plan.stages) {
    stage.kv_tokens = sets[root(stage.id)].room;
    stage.kv_sequences = slots_of(plan, stage, sets[root(stage.id)].slots);
  }
  for (auto& route : plan.routes) {
    const Set& set = set_of(route);
    double all = requests_in(problem.point(1), static_cast<double>(set.room));
    if (set.slots > 0) all = std::min(all, static_cast<double>(set.slots));
    const double fits = std::floor(all * route.weight / set.weight + 1e-9);
    route.batch = std::clamp<std::int64_t>(static_cast<std::int64_t>(fits), 1, most_batch);
  }
}

void predict_flow(const CostOptions& cost, ServePlan& plan) {
  const PlanFlow flow = plan_flow(plan, cost);
  std::int64_t in_flight = 0;
  for (const auto& route : plan.routes) in_flight += route.batch;
  plan.predicted.tokens_per_s = flow.output_tokens_per_s;
  plan.predicted.requests_per_s = flow.requests_per_s;
  plan.predicted.latency_s = static_cast<double>(in_flight) / flow.requests_per_s;
  plan.predicted.bottleneck_s = 1 / flow.requests_per_s;
  plan.predicted.memory_bytes.clear();
  for (const auto& stage : plan.stages) {
    const auto memory = stage_memory(plan, stage);
    for (std::size_t i = 0; i < memory.size(); ++i) plan.predicted.memory_bytes[stage.devices[i]] = memory[i];
  }
}

ServePlan write_placement(const ServeProblem& problem, const PlacementGroups& built, const Placement& placement) {
  PlacementFlow flow(built.problem);
  flow.place(placement);
  const double all = flow.maximise();
  std::vector<PlacementFlow::Way> ways = flow.ways();
  if (ways.size() > most_routes) ways.resize(most_routes);
  while (ways.back().tokens_per_s < least_part * all) ways.pop_back();
  ServePlan plan = describe(problem);
  add_stages(problem, built, placement, ways, plan);
  set_crossing_types(problem, plan);
  fill_shared_kv(problem, plan);
  predict_flow(problem.options.cost, plan);
  list_unused(problem, "no placement with more flow uses it", plan);
  return plan;
}

// Where every type's rates were measured, they bound the flow however devices are grouped; otherwise the cost form
// does, whose rates depend on the batch.
double flow_bound(const ServeProblem& problem, const std::vector<PlacementGroups>& all) {
  const Cluster& cluster = problem.cluster;
  const bool measured = std::all_of(cluster.types.begin(), cluster.types.end(), [&](const DeviceType& type) {
    return knows_type(problem.options.profile, type.name);
  });
  if (!measured) return most_requests_per_s(Groups(problem)) * tokens_through(problem.workload);
  std::map<std::pair<int, int>, BoundItem> items;  // by machine and type
  const auto item_of = [&](int device) -> BoundItem& {
    return items.try_emplace({cluster.devices[device].machine, cluster.devices[device].type}, BoundItem{0, {}})
        .first->second;
  };
  for (const int device : problem.devices()) item_of(device).devices += 1;
  for (const auto& built : all)
    for (std::size_t i = 0; i < built.groups.size(); ++i)
      item_of(built.groups[i].devices.front())
          .choices.push_back({built.problem.nodes[i].tokens_per_s, static_cast<double>(built.groups[i].degree())});
  std::vector<BoundItem> list;
  for (auto& [key, item] : items) list.push_back(std::move(item));
  return placement_bound(problem.model.arch.layers, list);
}

void record(const ServeProblem& problem, const PlacementAnswer& answer, double bound, ServePlan& plan) {
  const double outputs = problem.workload.mean_output_tokens() / tokens_through(problem.workload);
  plan.search.planner = "serve/placement";
  plan.search.cost = problem.options.cost.form;
  plan.search.seed = static_cast<std::int64_t>(problem.options.seed);
  plan.search.evaluated = answer.evaluated;
  plan.search.bound = std::max(bound * outputs, plan.predicted.tokens_per_s);
  plan.search.gap = 1 - plan.predicted.tokens_per_s / *plan.search.bound;
  plan.search.status = *plan.search.gap <= 1e-9 ? SearchStatus::optimal
                       : answer.complete        ? SearchStatus::gap
                                                : SearchStatus::deadline;
}

}  // namespace

std::vector<PlacementGroups> placement_groups(const ServeProblem& problem) {
  NodeRates rates(problem);
  std::set<std::int64_t> sizes;
  for (const auto& alike : alike_in_machines(problem))
    for (std::int64_t size = 1; size <= std::ssize(alike); ++size)
      if (size_allowed(problem.options.profile, problem.cluster.type_of(alike.front()).name, size)) sizes.insert(size);
  std::vector<PlacementGroups> all;
  for (const std::int64_t size : sizes)
    if (PlacementGroups built = build(problem, rates, size); !built.groups.empty()) all.push_back(std::move(built));
  return all;
}

PlacementGroups groups_of_plan(const ServeProblem& problem, const ServePlan& plan) {
  NodeRates rates(problem);
  std::vector<std::vector<int>> groups;
  std::vector<RankShares> shares;
  std::map<int, LayerRange> ranges;  // by a group's first device
  for (const auto& stage : plan.stages) {
    groups.emplace_back();
    for (const auto& name : stage.devices) groups.back().push_back(problem.cluster.find_device(name));
    shares.push_back({stage.shares, stage.expert_shares});
    ranges[groups.back().front()] = stage.layers;
  }
  std::set<std::string> unused;
  for (const auto& device : plan.unused) unused.insert(device.device);
  for (const int device : problem.devices())
    if (unused.contains(problem.cluster.devices[device].name)) {
      groups.push_back({device});
      shares.emplace_back();
    }
  PlacementGroups built = build(problem, rates, std::move(groups), std::move(shares));
  Placement start(built.groups.size());
  for (std::size_t i = 0; i < start.size(); ++i)
    if (const auto range = ranges.find(built.groups[i].devices.front()); range != ranges.end())
      if (built.problem.fits(static_cast<int>(i), range->second)) start[i] = range->second;
  const PlacedFlow placed{start, placement_flow(built.problem, start)};
  const auto place = std::find_if(built.starts.begin(), built.starts.end(),
                                  [&](const PlacedFlow& other) { return other.tokens_per_s < placed.tokens_per_s; });
  built.starts.insert(place, placed);
  return built;
}

std::optional<ServePlan> plan_placement(const ServeProblem& problem, const std::vector<PlacementGroups>& all,
                                        int restarts) {
  const auto best = [](const PlacementGroups& built) {
    return built.starts.empty() ? 0 : built.starts.front().tokens_per_s;
  };
  const auto chosen = std::max_element(
      all.begin(), all.end(), [&](const PlacementGroups& a, const PlacementGroups& b) { return best(a) < best(b); });
  if (chosen == all.end()) return std::nullopt;
  const PlacementAnswer answer = search_placement(chosen->problem, chosen->starts,
                                                  {.seed = problem.options.seed,
                                                   .deadline = problem.deadline,
                                                   .threads = problem.options.threads,
                                                   .restarts = restarts});
  if (answer.tokens_per_s <= 0) return std::nullopt;
  ServePlan plan = write_placement(problem, *chosen, answer.placement);
  record(problem, answer, flow_bound(problem, all), plan);
  return plan;
}

bool placements_include_replicas(const ServeProblem& problem) {
  return problem.options.tensor_parallel == TensorParallel::within_machine &&
         std::all_of(problem.cluster.machines.begin(), problem.cluster.machines.end(),
                     [](const Machine& machine) { return machine.devices.size() < 2; });
}

namespace {

// What the search of replicas said of its own price holds no longer.
void judge_by_flow(ServePlan& plan) {
  SearchRecord& search = plan.search;
  if (search.status == SearchStatus::optimal) search.status = SearchStatus::gap;
  if (!plan.profile.layer_rate.empty()) search.bound.reset();  // it was the cost form's
  if (search.bound) search.bound = std::max(*search.bound, plan.predicted.tokens_per_s);
  search.gap.reset();
  if (search.bound) search.gap = 1 - plan.predicted.tokens_per_s / *search.bound;
  if (!search.bound && search.status == SearchStatus::gap) search.status = SearchStatus::heuristic;
}

}  // namespace

void keep_greater_flow(const ServeProblem& problem, std::optional<ServePlan> shared, ServeOutcome& outcome) {
  if (outcome.plan) {
    try {
      predict_flow(problem.options.cost, *outcome.plan);
      judge_by_flow(*outcome.plan);
    } catch (const Error& error) {
      if (!shared || error.code() != ErrorCode::input) throw;
      outcome.plan.reset();
    }
  }
  if (!shared || (outcome.plan && outcome.plan->predicted.tokens_per_s > shared->predicted.tokens_per_s)) return;
  outcome.plan = std::move(shared);
  outcome.reason.clear();
  outcome.hint.clear();
}

}  // namespace motley
