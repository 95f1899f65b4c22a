#include "motley/planner/serve/plan_again.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/planner/serve/standby.hpp"

namespace motley {
namespace {

// "tp=8 on box"
void read_degree(const std::string& text, std::map<std::string, int>& degrees) {
  constexpr std::string_view start = "tp=", on = " on ";
  const auto at = text.find(on);
  int degree = 0;
  if (text.starts_with(start) && at != std::string::npos) {
    const auto [rest, status] = std::from_chars(text.data() + start.size(), text.data() + at, degree);
    if (status == std::errc() && rest == text.data() + at && at + on.size() < text.size()) {
      degrees[text.substr(at + on.size())] = degree;
      return;
    }
  }
  throw input_error(fmt::format("--what-if needs a degree and a machine, found \"{}\"", text),
                    "give a tensor-parallel degree and a machine, as in --what-if \"tp=8 on box\"");
}

// "A100*2", or "A100*2 @ home": one more machine with these devices.
MachineDescription read_machine(const std::string& text, const Cluster& cluster, std::size_t number) {
  MachineDescription machine;
  machine.name = fmt::format("added-{}", number);
  machine.site = cluster.machines.front().site;
  std::string devices = text;
  if (const auto at = text.find('@'); at != std::string::npos) {
    const auto trim = [](std::string_view part) {
      while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
      while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
      return std::string(part);
    };
    devices = trim(std::string_view(text).substr(0, at));
    machine.site = trim(std::string_view(text).substr(at + 1));
    std::set<std::string> sites;
    for (const auto& known : cluster.machines) sites.insert(known.site);
    if (!sites.contains(machine.site))
      throw input_error(fmt::format("--add \"{}\": the cluster has no site \"{}\"", text, machine.site),
                        did_you_mean(machine.site, {sites.begin(), sites.end()},
                                     fmt::format("choose one of {}", fmt::join(sites, ", ")), '`'));
  }
  machine.devices = {devices};
  return machine;
}

}  // namespace

Objective parse_objective(const std::string& text) {
  std::vector<std::string> names;
  for (const auto& entry : enum_names<Objective>()) {
    if (entry.name == text) return entry.value;
    names.emplace_back(entry.name);
  }
  throw input_error(fmt::format("--objective \"{}\" is not one of {}", text, fmt::join(names, ", ")),
                    did_you_mean(text, names, "", '`'));
}

ServeOptions options_of(const ServePlan& plan) {
  ServeOptions options;
  if (!plan.search.objective.empty()) options.objective = parse_objective(plan.search.objective);
  options.cost.form = plan.search.cost.empty() ? "motley" : plan.search.cost;
  options.step = plan.step;
  options.profile = plan.profile;
  options.seed = static_cast<std::uint64_t>(plan.search.seed);
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.front = Front::skip;
  if (!plan.stages.empty()) {
    options.weight_type = plan.stages.front().weight_type;
    options.weight_types = weight_types_of(plan);
    options.kv_type = plan.stages.front().kv_type;
  }
  options.crossing_type = crossing_type_of(plan);
  options.standby_bytes = standby_bytes_of(plan);
  return options;
}

ServeOutcome plan_changed(const ServePlan& plan, const Changes& changes) {
  ServeOptions options = options_of(plan);
  options.excluded = changes.without;
  for (const auto& text : changes.what_if) read_degree(text, options.degrees);
  ClusterDescription description = plan.cluster.description;
  for (std::size_t i = 0; i < changes.add.size(); ++i)
    description.machines.push_back(read_machine(changes.add[i], plan.cluster, i));
  const Cluster cluster =
      changes.add.empty() ? plan.cluster : resolve(std::move(description), "the cluster with --add");
  return plan_serve(cluster, plan.model, plan.workload, options);
}

}  // namespace motley
