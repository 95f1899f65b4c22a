#include "motley/planner/serve/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/planner/serve/grouping/grouping.hpp"

namespace motley {
namespace {

constexpr double quick_effort = 0.05;
constexpr double quick_search_s = 0.5;

using Devices = std::vector<int>;

double demand(const ModelDemand& asked) { return asked.workload.total_rate_per_s(); }

ServeProblem problem_of(const Cluster& cluster, const ModelDemand& asked, const ServeOptions& options,
                        Instant deadline) {
  const DType weight_type = options.weight_type.value_or(asked.model.arch.checkpoint_type);
  return {cluster,    asked.model,   asked.workload,
          options,    weight_type,   options.kv_type.value_or(dtype_row(weight_type).computed_in),
          deadline,   thorough_work, options.effort,
          Phase::both};
}

// A model's plan on its devices.
std::optional<ServePlan> plan_on(const Cluster& cluster, const ModelDemand& asked, const Devices& devices,
                                 ServeOptions options) {
  const std::set<int> own(devices.begin(), devices.end());
  if (own.empty()) return {};
  options.front = Front::skip;
  options.excluded.clear();
  for (int device = 0; device < std::ssize(cluster.devices); ++device)
    if (!own.contains(device)) options.excluded.push_back(cluster.devices[device].name);
  return plan_serve(cluster, asked.model, asked.workload, options).plan;
}

// ---- few classes of devices ----

// How many requests per second of each group of class_groups() a model serves, over what it is asked for.
std::vector<double> shares(const ServeProblem& problem, const ModelDemand& asked, bool& exact) {
  Groups groups(problem);
  std::vector<double> shares = most_worths(groups, exact);
  for (double& share : shares) share /= demand(asked);
  return shares;
}

struct Split {
  double least = 0, sum = 0;  // shares
  std::size_t own = 0;        // the group of the last model; 0: none, otherwise from 1
  bool operator<(const Split& other) const { return std::pair(least, sum) < std::pair(other.least, other.sum); }
};

// What is left of group `whole` without `part`, as an index from 0 (nothing); none where it is not a part of it.
class Subtraction {
 public:
  explicit Subtraction(const ClassGroups& all) : all_(all) {
    std::size_t weight = 1;
    for (const auto& alike : all.classes) {
      weights_.push_back(weight);
      weight *= alike.size() + 1;
    }
  }
  std::optional<std::size_t> left(std::size_t whole, std::size_t part) const {
    if (part == 0) return whole;
    std::size_t left = 0;
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const std::int64_t count = (whole == 0 ? 0 : all_.groups[whole - 1].takes[k]) - all_.groups[part - 1].takes[k];
      if (count < 0) return {};
      left += static_cast<std::size_t>(count) * weights_[k];
    }
    return left;
  }

 private:
  const ClassGroups& all_;
  std::vector<std::size_t> weights_;
};

std::vector<Devices> divided(const Cluster& cluster, const std::vector<ModelDemand>& models,
                             const ServeOptions& options, Instant deadline, bool& exact) {
  const ClassGroups all = class_groups(problem_of(cluster, models.front(), options, deadline));
  const Subtraction subtraction(all);
  const std::size_t count = all.groups.size() + 1;
  std::vector<std::vector<Split>> tables;  // by model: of the first 1, 2, ... models on each group
  for (const auto& asked : models) {
    const ServeProblem problem = problem_of(cluster, asked, options, deadline);
    const std::vector<double> own = shares(problem, asked, exact);
    std::vector<Split> table(count);
    for (std::size_t group = 0; group < count; ++group)
      for (std::size_t part = 0; part <= group; ++part) {
        const auto left = subtraction.left(group, part);
        if (!left) continue;
        const double share = part == 0 ? 0 : own[part - 1];
        Split split{share, share, part};
        if (!tables.empty()) {
          split.least = std::min(share, tables.back()[*left].least);
          split.sum += tables.back()[*left].sum;
        }
        if (table[group] < split || part == 0) table[group] = split;
      }
    tables.push_back(std::move(table));
  }
  std::vector<Devices> division(models.size());
  std::vector<std::size_t> dealt(all.classes.size(), 0);
  std::size_t group = count - 1;
  for (std::size_t m = models.size(); m-- > 0;) {
    const std::size_t own = tables[m][group].own;
    group = subtraction.left(group, own).value();
    for (std::size_t k = 0; own > 0 && k < dealt.size(); ++k)
      for (std::int64_t i = 0; i < all.groups[own - 1].takes[k]; ++i) division[m].push_back(all.classes[k][dealt[k]++]);
  }
  return division;
}

// ---- many: whole machines ----

class MachineDeal {
 public:
  MachineDeal(const Cluster& cluster, const std::vector<ModelDemand>& models, const ServeOptions& options,
              Instant deadline)
      : cluster_(cluster), models_(models), options_(options), division_(models.size()) {
    for (const auto& asked : models) problems_.push_back(problem_of(cluster, asked, options, deadline));
    for (const auto& problem : problems_) groups_.emplace_back(problem);
  }

  std::vector<Devices> run() {
    deal();
    std::vector<double> now;
    for (std::size_t m = 0; m < models_.size(); ++m) now.push_back(planned_share(m, division_[m]));
    while (!expired(problems_.front()) && improve(now)) {
    }
    return division_;
  }

 private:
  // At most, by the relaxation that every device computes all the time; below 0 while the model does not fit.
  double possible_share(std::size_t m, const Devices& devices) const {
    auto groups = groups_.begin();
    std::advance(groups, m);
    const double copies = devices.empty() ? 0 : groups->copies(devices);
    return copies < 1 ? copies - 1 : groups->most_requests_per_s(devices) / demand(models_[m]);
  }

  std::vector<Devices> machines_of(const Devices& devices) const {
    std::map<int, Devices> machines;
    for (const int device : devices) machines[cluster_.devices[device].machine].push_back(device);
    std::vector<Devices> list;
    for (auto& [machine, members] : machines) list.push_back(std::move(members));
    return list;
  }

  // Machines one by one, each to the model that has least.
  void deal() {
    for (const Devices& machine : machines_of(problems_.front().devices())) {
      std::size_t poorest = 0;
      for (std::size_t m = 1; m < models_.size(); ++m)
        if (possible_share(m, division_[m]) < possible_share(poorest, division_[poorest])) poorest = m;
      division_[poorest].insert(division_[poorest].end(), machine.begin(), machine.end());
    }
  }

  double planned_share(std::size_t m, const Devices& devices) const {
    ServeOptions quick = options_;
    quick.effort = quick_effort;
    quick.roles = StageRoles::both;
    quick.deadline_s = std::min(options_.deadline_s, quick_search_s);
    const auto plan = plan_on(cluster_, models_[m], devices, quick);
    return plan ? plan->predicted.requests_per_s / demand(models_[m]) : 0;
  }

  // Moves the machine from the richest to the poorest that leaves the larger share; false where none does.
  bool improve(std::vector<double>& now) {
    const auto rich = static_cast<std::size_t>(std::max_element(now.begin(), now.end()) - now.begin());
    const auto poor = static_cast<std::size_t>(std::min_element(now.begin(), now.end()) - now.begin());
    if (rich == poor) return false;
    std::set<std::vector<int>> tried;  // types: machines alike
    for (const Devices& machine : machines_of(division_[rich])) {
      std::vector<int> types;
      for (const int device : machine) types.push_back(cluster_.devices[device].type);
      if (!tried.insert(types).second) continue;
      if (expired(problems_.front())) return false;
      Devices gives = division_[rich], takes = division_[poor];
      std::erase_if(gives,
                    [&](int device) { return std::find(machine.begin(), machine.end(), device) != machine.end(); });
      takes.insert(takes.end(), machine.begin(), machine.end());
      const double given = planned_share(rich, gives), taken = planned_share(poor, takes);
      if (std::min(given, taken) <= now[poor] * (1 + 1e-9)) continue;
      division_[rich] = std::move(gives);
      division_[poor] = std::move(takes);
      now[rich] = given;
      now[poor] = taken;
      return true;
    }
    return false;
  }

  const Cluster& cluster_;
  const std::vector<ModelDemand>& models_;
  const ServeOptions& options_;
  std::vector<Devices> division_;
  std::vector<ServeProblem> problems_;
  std::list<Groups> groups_;  // they do not move
};

void say_whose(const std::vector<ModelDemand>& models, const std::vector<std::string>& excluded,
               std::vector<ServePlan>& plans) {
  std::map<std::string, std::string> reasons;
  for (std::size_t m = 0; m < plans.size(); ++m)
    for (const auto& stage : plans[m].stages)
      for (const auto& device : stage.devices) reasons[device] = fmt::format("serves {}", models[m].model.name);
  for (const auto& device : excluded) reasons[device] = "excluded by --without";
  for (auto& plan : plans)
    for (auto& unused : plan.unused)
      if (const auto reason = reasons.find(unused.device); reason != reasons.end())
        unused.reason = reason->second;
      else if (unused.reason == "excluded by --without")
        unused.reason = "gives nothing to the model with the smallest share";
}

}  // namespace

ModelsOutcome plan_models(const Cluster& cluster, const std::vector<ModelDemand>& models, const ServeOptions& options) {
  for (const auto& asked : models)
    if (!(demand(asked) > 0))
      throw input_error(
          fmt::format("the demand for {} is missing: no class of its workload has a rate", asked.model.name),
          "give each [[class]] a rate, as in rate = \"4 /s\": the demand divides the devices");
  const Instant start = Clock::now();
  const auto after = [&](double seconds) { return start + duration_of(seconds); };
  const double seconds = std::clamp(options.deadline_s, 0.0, 1e6);
  const Instant halfway = after(seconds / 2);
  ModelsOutcome outcome;
  ServeOptions searched = options;
  if (searched.objective == Objective::flow) searched.objective = Objective::throughput;
  std::vector<Devices> division;
  if (few_enough_for_partitions(problem_of(cluster, models.front(), searched, halfway))) {
    outcome.exact = true;
    division = divided(cluster, models, searched, halfway, outcome.exact);
  } else {
    division = MachineDeal(cluster, models, searched, halfway).run();
  }
  ServeOptions each = options;
  each.deadline_s = seconds / 2 / static_cast<double>(models.size());
  outcome.share = std::numeric_limits<double>::infinity();
  for (std::size_t m = 0; m < models.size(); ++m) {
    auto plan = plan_on(cluster, models[m], division[m], each);
    if (!plan) {
      return {.plans = {},
              .reason = fmt::format("{} does not fit in addition to the other models", models[m].model.name),
              .hint = "add devices, or remove a model"};
    }
    outcome.share = std::min(outcome.share, plan->predicted.requests_per_s / demand(models[m]));
    outcome.plans.push_back(std::move(*plan));
  }
  say_whose(models, options.excluded, outcome.plans);
  return outcome;
}

}  // namespace motley
