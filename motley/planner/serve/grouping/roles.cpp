#include "motley/planner/serve/grouping/roles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/cost/serve/hand_over.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/solve/milp.hpp"

namespace motley {
namespace {

constexpr std::size_t most_division_groups = 32;  // of a division: 1,000 pairs
constexpr std::size_t most_devices = 128;         // for divisions other than the one that was found
constexpr std::int64_t most_nodes = 2000;
constexpr double least_flow = 1e-3;       // of all requests; less is not worth a route
constexpr double most_of_the_time = 0.2;  // of what is left until the deadline
constexpr double clearly = 1.02;          // what roles must gain, for they cost memory and links

bool expired(Instant deadline) { return Clock::now() >= deadline; }

// ---- pipelines of every role ----

struct RolePipelines {
  Pipeline both, prefill, decode;
};

ServeProblem in_phase(const ServeProblem& problem, Phase phase, Instant deadline) {
  ServeProblem part = problem;
  part.deadline = deadline;
  part.phase = phase;
  return part;
}

// The best pipelines of groups of devices.
class Roles {
 public:
  Roles(Groups& both, Instant deadline)
      : both_(both),
        prefill_problem_(in_phase(both.problem(), Phase::prefill, deadline)),
        decode_problem_(in_phase(both.problem(), Phase::decode, deadline)),
        prefill_(prefill_problem_),
        decode_(decode_problem_) {}

  RolePipelines pipelines(const std::vector<int>& devices) {
    return {both_.best(devices), best(prefill_, devices), best(decode_, devices)};
  }
  RoleRates rates(const RolePipelines& pipelines) const {
    const Objective objective = both_.problem().options.objective;
    return {worth(pipelines.both, objective), worth(pipelines.prefill, objective), worth(pipelines.decode, objective)};
  }
  const ServeProblem& problem() const { return both_.problem(); }
  Groups& groups() { return both_; }

 private:
  static Pipeline best(Groups& groups, const std::vector<int>& devices) {
    return groups.may_fit(devices) ? groups.best(devices) : Pipeline{devices, nullptr};
  }

  Groups& both_;
  ServeProblem prefill_problem_, decode_problem_;
  Groups prefill_, decode_;
};

bool is_exact(const RolePipelines& pipelines) {
  const auto exact = [](const Pipeline& pipeline) { return !pipeline.answer || pipeline.answer->part.exact; };
  return exact(pipelines.both) && exact(pipelines.prefill) && exact(pipelines.decode);
}

std::vector<KvHolder> holders(const ServeProblem& problem, const Pipeline& pipeline) {
  std::vector<KvHolder> holders;
  const auto devices = pipeline.stage_devices();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::int64_t last = first + pipeline.best().chain.stages[i].units;
    holders.push_back({devices[i], {first, last}, problem.kv_type});
    first = last;
  }
  return holders;
}

RoleProblem role_problem(const Roles& roles, const std::vector<RolePipelines>& members) {
  const ServeProblem& problem = roles.problem();
  RoleProblem result;
  for (const auto& member : members) result.groups.push_back(roles.rates(member));
  std::map<KvLink, int> numbers;
  result.moves.assign(members.size(), std::vector<std::vector<LinkTime>>(members.size()));
  for (std::size_t i = 0; i < members.size(); ++i)
    for (std::size_t j = 0; j < members.size(); ++j) {
      if (i == j || result.groups[i].prefill <= 0 || result.groups[j].decode <= 0) continue;
      const auto moves = kv_moves(problem.cluster, problem.model.arch, holders(problem, members[i].prefill),
                                  holders(problem, members[j].decode), problem.workload.mean_prompt_tokens());
      for (const auto& [link, seconds] : link_loads(moves))
        result.moves[i][j].push_back({numbers.emplace(link, std::ssize(numbers)).first->second, seconds});
    }
  return result;
}

// ---- writing ----

class RoleWriter {
 public:
  RoleWriter(const ServeProblem& problem, const std::vector<RolePipelines>& members, const RoleChoice& choice)
      : problem_(problem), members_(members), choice_(choice), chains_(members.size()) {}

  ServePlan write() {
    plan_.model = problem_.model;
    plan_.cluster = problem_.cluster;
    plan_.workload = problem_.workload;
    plan_.profile = problem_.options.profile;
    plan_.step = problem_.options.step;
    for (std::size_t i = 0; i < members_.size(); ++i) add_chain(i);
    for (const auto& flow : choice_.flows) add_route(flow);
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (choice_.roles[i] == GroupRole::both)
        plan_.routes.push_back({.id = fmt::format("r{}", plan_.routes.size()),
                                .path = chains_[i],
                                .weight = members_[i].both.best().requests_per_s,
                                .batch = members_[i].both.best().batch});
    double most = 0;
    for (const auto& route : plan_.routes) most = std::max(most, route.weight);
    for (auto& route : plan_.routes) route.weight /= most;
    set_crossing_types(problem_, plan_);
    list_unused(problem_, "no better division into roles uses it", plan_);
    predict(plan_, problem_.options.cost);
    return std::move(plan_);
  }

 private:
  const Pipeline& pipeline(std::size_t i) const {
    const RolePipelines& member = members_[i];
    return choice_.roles[i] == GroupRole::both      ? member.both
           : choice_.roles[i] == GroupRole::prefill ? member.prefill
                                                    : member.decode;
  }

  void add_chain(std::size_t i) {
    const GroupRole role = choice_.roles[i];
    if (role == GroupRole::idle) return;
    const std::string kind = role == GroupRole::both ? "b" : role == GroupRole::prefill ? "p" : "d";
    for (Stage& stage : pipeline_stages(problem_, pipeline(i), fmt::format("{}{}", kind, numbers_[kind]++))) {
      if (role != GroupRole::both) stage.role = role == GroupRole::prefill ? StageRole::prefill : StageRole::decode;
      chains_[i].push_back({stage.id, stage.layers});
      plan_.stages.push_back(std::move(stage));
    }
    // One block table serves the chain, whatever routes pass it.
    fill_kv(plan_, {.id = "", .path = chains_[i], .batch = pipeline(i).best().batch},
            most_kv_tokens(plan_, problem_.options.max_batch));
  }

  // A group that decodes divides its batch among those that prefill for it.
  void add_route(const RoleFlow& flow) {
    double received = 0;
    for (const auto& other : choice_.flows)
      if (other.to == flow.to) received += other.requests_per_s;
    const double batch = static_cast<double>(pipeline(flow.to).best().batch) * flow.requests_per_s / received;
    Route route{.id = fmt::format("r{}", plan_.routes.size()),
                .path = chains_[flow.from],
                .weight = flow.requests_per_s,
                .batch = std::max<std::int64_t>(1, std::llround(batch))};
    route.path.insert(route.path.end(), chains_[flow.to].begin(), chains_[flow.to].end());
    plan_.routes.push_back(std::move(route));
  }

  const ServeProblem& problem_;
  const std::vector<RolePipelines>& members_;
  const RoleChoice& choice_;
  std::vector<std::vector<Hop>> chains_;
  std::map<std::string, int> numbers_;
  ServePlan plan_;
};

// A group may decode faster than others prefill for it: then fewer in flight do, and wait less.
void fit_batches(ServePlan& plan, const CostOptions& cost) {
  constexpr double as_many = 0.999;
  const double target = as_many * plan.predicted.requests_per_s;
  for (auto& route : plan.routes) {
    std::int64_t enough = route.batch, too_few = 0;
    while (enough - too_few > 1) {
      route.batch = too_few + (enough - too_few) / 2;
      (price_serve(plan, cost).requests_per_s >= target ? enough : too_few) = route.batch;
    }
    route.batch = enough;
  }
  predict(plan, cost);
}

bool keeps_deadlines(const ServePlan& plan, const ServeOptions& options) {
  if (options.objective != Objective::slo) return true;
  const ServeCost cost = price_serve(plan, options.cost);
  return std::all_of(cost.routes.begin(), cost.routes.end(),
                     [&](const RouteCost& route) { return deadline_excess(plan.workload, route) <= 1e-9; });
}

// ---- divisions ----

using DeviceGroups = std::vector<std::vector<int>>;

std::optional<ServePlan> plan_division(Roles& roles, const DeviceGroups& division, Instant deadline) {
  if (division.size() < 2 || division.size() > most_division_groups) return {};
  std::vector<RolePipelines> members;
  for (const auto& devices : division) {
    if (expired(deadline)) return {};
    members.push_back(roles.pipelines(devices));
  }
  const RoleChoice choice = choose_roles(role_problem(roles, members), seconds_until(deadline));
  if (choice.flows.empty()) return {};
  ServePlan plan = RoleWriter(roles.problem(), members, choice).write();
  fit_batches(plan, roles.problem().options.cost);
  return plan;
}

// The best division of devices that fall into few classes, as if moving keys and values cost nothing: for every group
// and role a number of copies; as many requests are decoded as are prefilled.
struct Relaxation {
  DeviceGroups division;
  std::optional<double> bound;
};

Relaxation relaxed(Roles& roles, Instant deadline) {
  const ClassGroups candidates = class_groups(roles.problem());
  std::vector<RoleRates> rates;
  bool exact = true;
  double unit = 0;
  for (const auto& group : candidates.groups) {
    if (expired(deadline)) return {};
    const RolePipelines pipelines = roles.pipelines(group.devices);
    exact = exact && is_exact(pipelines);
    rates.push_back(roles.rates(pipelines));
    unit = std::max({unit, rates.back().both, rates.back().prefill, rates.back().decode});
  }
  if (unit <= 0) return {{}, exact ? std::optional(0.0) : std::nullopt};

  MilpModel model{.sense = Sense::maximize};
  const double most = static_cast<double>(roles.problem().devices().size());
  const int moved = model.add_column({.cost = 1, .upper = most});  // requests per second that are decoded elsewhere
  MilpRow prefilled{.upper = 0, .entries = {{moved, 1}}}, decoded = prefilled;
  std::vector<MilpRow> used(candidates.classes.size());
  std::vector<std::size_t> group_of_column = {0};
  for (std::size_t g = 0; g < candidates.groups.size(); ++g) {
    const auto add = [&](double rate, double cost) {
      const int column = model.add_column({.cost = cost / unit, .upper = most, .integer = true});
      for (std::size_t k = 0; k < used.size(); ++k)
        if (candidates.groups[g].takes[k] > 0)
          used[k].entries.push_back({column, static_cast<double>(candidates.groups[g].takes[k])});
      group_of_column.push_back(g);
      return MilpEntry{column, -rate / unit};
    };
    if (rates[g].both > 0) add(0, rates[g].both);
    if (rates[g].prefill > 0) prefilled.entries.push_back(add(rates[g].prefill, 0));
    if (rates[g].decode > 0) decoded.entries.push_back(add(rates[g].decode, 0));
  }
  for (std::size_t k = 0; k < used.size(); ++k) {
    used[k].upper = static_cast<double>(candidates.classes[k].size());
    model.add_row(std::move(used[k]));
  }
  model.add_row(std::move(prefilled));
  model.add_row(std::move(decoded));
  const MilpAnswer answer = solve_milp(model, {.time_limit_s = std::max(0.01, seconds_until(deadline)),
                                               .relative_gap = 0,
                                               .node_limit = most_nodes,
                                               .start = {}});
  if (!answer.has_solution()) return {};

  Relaxation result;
  if (exact) result.bound = std::max(answer.bound, answer.objective) * unit;
  std::vector<std::size_t> dealt(candidates.classes.size(), 0);
  for (std::size_t column = 1; column < group_of_column.size(); ++column)
    for (auto copies = std::llround(answer.values[column]); copies > 0; --copies) {
      std::vector<int>& devices = result.division.emplace_back();
      const auto& takes = candidates.groups[group_of_column[column]].takes;
      for (std::size_t k = 0; k < takes.size(); ++k)
        for (std::int64_t i = 0; i < takes[k]; ++i) devices.push_back(candidates.classes[k][dealt[k]++]);
    }
  return result;
}

DeviceGroups groups_of(const Grouping& grouping) {
  DeviceGroups division;
  for (const auto& pipeline : grouping.pipelines) division.push_back(pipeline.devices);
  return division;
}

}  // namespace

RoleChoice choose_roles(const RoleProblem& problem, double time_limit_s) {
  const std::size_t count = problem.groups.size();
  double unit = 0;  // rates of about 1
  for (const auto& rates : problem.groups) unit = std::max({unit, rates.both, rates.prefill, rates.decode});
  RoleChoice choice{.roles = std::vector<GroupRole>(count, GroupRole::idle), .flows = {}};
  if (unit <= 0) return choice;

  MilpModel model{.sense = Sense::maximize};
  std::vector<std::array<int, 3>> role(count);  // columns: both, prefill, decode
  std::vector<MilpRow> sends(count), receives(count);
  for (std::size_t i = 0; i < count; ++i) {
    const RoleRates& rates = problem.groups[i];
    const double all[] = {rates.both / unit, rates.prefill / unit, rates.decode / unit};
    for (std::size_t k = 0; k < 3; ++k)
      role[i][k] = model.add_column({.cost = k == 0 ? all[0] : 0, .upper = all[k] > 0 ? 1.0 : 0.0, .integer = true});
    model.add_row({.upper = 1, .entries = {{role[i][0], 1}, {role[i][1], 1}, {role[i][2], 1}}});
    sends[i] = {.upper = 0, .entries = {{role[i][1], -all[1]}}};
    receives[i] = {.upper = 0, .entries = {{role[i][2], -all[2]}}};
  }
  std::vector<std::vector<int>> flow(count, std::vector<int>(count, -1));
  std::map<int, MilpRow> links;
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < count; ++j) {
      const double most = std::min(problem.groups[i].prefill, problem.groups[j].decode) / unit;
      if (i == j || most <= 0) continue;
      flow[i][j] = model.add_column({.cost = 1, .upper = most});
      sends[i].entries.push_back({flow[i][j], 1});
      receives[j].entries.push_back({flow[i][j], 1});
      for (const LinkTime& time : problem.moves[i][j]) {
        MilpRow& row = links.try_emplace(time.link, MilpRow{.upper = 1, .entries = {}}).first->second;
        row.entries.push_back({flow[i][j], time.seconds * unit});
      }
    }
  for (std::size_t i = 0; i < count; ++i) {
    model.add_row(std::move(sends[i]));
    model.add_row(std::move(receives[i]));
  }
  for (auto& [link, row] : links) model.add_row(std::move(row));

  const MilpAnswer answer =
      solve_milp(model, {.time_limit_s = std::max(0.01, time_limit_s), .node_limit = most_nodes, .start = {}});
  if (!answer.has_solution()) return choice;
  const auto value = [&](int column) { return answer.values[static_cast<std::size_t>(column)]; };
  for (std::size_t i = 0; i < count; ++i)
    if (value(role[i][0]) > 0.5) {
      choice.roles[i] = GroupRole::both;
      choice.requests_per_s += problem.groups[i].both;
    }
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < count; ++j) {
      if (flow[i][j] < 0 || value(flow[i][j]) < least_flow * answer.objective) continue;
      choice.roles[i] = GroupRole::prefill;
      choice.roles[j] = GroupRole::decode;
      choice.flows.push_back({i, j, value(flow[i][j]) * unit});
      choice.requests_per_s += choice.flows.back().requests_per_s;
    }
  return choice;
}

RolePlans plan_roles(Groups& groups, const Grouping& grouping, RoleDivisions which) {
  const ServeProblem& problem = groups.problem();
  if (!may_have_roles(problem)) return {{}, 0.0};
  const Instant now = Clock::now();
  const Instant deadline =
      now + std::chrono::duration_cast<Instant::duration>(most_of_the_time * (problem.deadline - now));
  Roles roles(groups, deadline);
  RolePlans result;
  std::vector<DeviceGroups> divisions = {groups_of(grouping)};
  if (few_enough_for_partitions(problem)) {
    Relaxation relaxation = relaxed(roles, deadline);
    result.bound = relaxation.bound;
    divisions.push_back(std::move(relaxation.division));
  } else if (which == RoleDivisions::also_first_guesses && problem.devices().size() <= most_devices) {
    for (auto& start : structured_starts(groups)) divisions.push_back(std::move(start));
  }
  for (const auto& division : divisions)
    if (auto plan = plan_division(roles, division, deadline)) result.plans.push_back(std::move(*plan));
  std::stable_sort(result.plans.begin(), result.plans.end(), [](const ServePlan& a, const ServePlan& b) {
    return a.predicted.requests_per_s > b.predicted.requests_per_s;
  });
  return result;
}

std::optional<double> keep_roles_where_better(Groups& groups, const Grouping& grouping, ServePlan& plan) {
  const ServeOptions& options = groups.problem().options;
  RolePlans apart = plan_roles(groups, grouping, RoleDivisions::also_first_guesses);
  for (auto& other : apart.plans) {
    if (other.predicted.requests_per_s <= clearly * plan.predicted.requests_per_s) break;
    if (!keeps_deadlines(other, options)) continue;
    plan = std::move(other);
    break;
  }
  return apart.bound;
}

std::vector<ServePlan> role_candidates(Groups& groups, const Grouping& grouping) {
  constexpr std::size_t most_plans = 2;  // of those for one tightness
  const ServeProblem& problem = groups.problem();
  std::vector<ServePlan> candidates;
  for (const double tighter : {1.0, 0.5}) {
    const Workload workload = with_deadlines_scaled(problem.workload, tighter);
    const ServeProblem other{problem.cluster, problem.model,    workload,          problem.options, problem.weight_type,
                             problem.kv_type, problem.deadline, problem.most_work, problem.effort,  problem.phase};
    Groups search(other);
    std::vector<ServePlan> plans = plan_roles(search, grouping, RoleDivisions::found).plans;
    if (plans.size() > most_plans) plans.resize(most_plans);
    for (auto& plan : plans) {
      plan.workload = problem.workload;
      candidates.push_back(std::move(plan));
    }
  }
  return candidates;
}

}  // namespace motley
