#include "motley/planner/serve/pipeline/serve_problem.hpp"

#include <algorithm>

#include "motley/cost/serve/serve_forms.hpp"
#include "motley/planner/serve/pipeline/classes.hpp"

namespace motley {

EnumNames<Objective> names_of(Bound<Objective>) {
  return {{Objective::slo, "slo"},
          {Objective::throughput, "throughput"},
          {Objective::latency, "latency"},
          {Objective::flow, "flow"}};
}

std::vector<int> ServeProblem::devices() const {
  std::vector<int> devices = all_devices(cluster);
  const auto& excluded = options.excluded;
  std::erase_if(devices, [&](int device) {
    return std::find(excluded.begin(), excluded.end(), cluster.devices[device].name) != excluded.end();
  });
  return devices;
}

DType WeightTypes::on(const Cluster& cluster, const std::vector<int>& devices) const {
  const auto type_of = [&](int device) {
    return of_type.at(static_cast<std::size_t>(cluster.devices[static_cast<std::size_t>(device)].type));
  };
  DType fewest = type_of(devices.at(0));
  for (const int device : devices)
    if (const DType type = type_of(device); dtype_row(type).bits_per_value() < dtype_row(fewest).bits_per_value())
      fewest = type;
  return fewest;
}

std::map<std::string, DType> weight_types_of(const ServePlan& plan) {
  std::map<std::string, DType> types;
  for (const Stage& stage : plan.stages)
    for (const std::string& device : stage.devices)
      types.emplace(plan.cluster.type_of(plan.cluster.find_device(device)).name, stage.weight_type);
  return types;
}

std::optional<DType> ServeProblem::sent_in(const std::vector<int>& from, const std::vector<int>& to) const {
  return crosses_machines(cluster, from, to) ? options.crossing_type : std::nullopt;
}

WeightTypes ServeProblem::weight_types() const {
  WeightTypes types;
  for (const DeviceType& type : cluster.types) {
    const auto found = options.weight_types.find(type.name);
    types.of_type.push_back(found == options.weight_types.end() ? weight_type : found->second);
  }
  return types;
}

ServePoint ServeProblem::point(std::int64_t sequences, bool loaded) const {
  return {.prompt_tokens = workload.mean_prompt_tokens(),
          .output_tokens = workload.mean_output_tokens(),
          .sequences = sequences,
          .step = options.step,
          .phase = phase,
          .loaded = loaded,
          .cached_tokens = workload.mean_cached_tokens()};
}

std::unique_ptr<ServeForm> ServeProblem::form(const ServePoint& at) const {
  return make_form(with_gamma(options.cost, options.profile, model.name), cluster, model.arch, at);
}

bool may_have_roles(const ServeProblem& problem) {
  const ServeOptions& options = problem.options;
  return options.roles == StageRoles::apart_where_better && options.cost.form == "motley" &&
         (options.objective == Objective::slo || options.objective == Objective::throughput) &&
         options.replication == Replication::allowed && options.use_devices == UseDevices::may_idle &&
         problem.devices().size() > 1 && problem.workload.mean_output_tokens() > 1 &&
         problem.workload.mean_prompt_tokens() >= 1;
}

}  // namespace motley
