#include "motley/planner/serve/pipeline/problem.hpp"

#include <algorithm>

#include "motley/cost/serve/serve_forms.hpp"
#include "motley/planner/serve/pipeline/classes.hpp"

namespace motley {

template <>
const std::vector<EnumName<Objective>>& enum_names<Objective>() {
  static const std::vector<EnumName<Objective>> names = {{Objective::slo, "slo"},
                                                         {Objective::throughput, "throughput"},
                                                         {Objective::latency, "latency"},
                                                         {Objective::flow, "flow"}};
  return names;
}

std::vector<int> ServeProblem::devices() const {
  std::vector<int> devices = all_devices(cluster);
  const auto& excluded = options.excluded;
  std::erase_if(devices, [&](int device) {
    return std::find(excluded.begin(), excluded.end(), cluster.devices[device].name) != excluded.end();
  });
  return devices;
}

ServePoint ServeProblem::point(std::int64_t sequences, bool loaded) const {
  return {workload.mean_prompt_tokens(), workload.mean_output_tokens(), sequences, options.step, phase, loaded};
}

std::unique_ptr<ServeForm> ServeProblem::form(const ServePoint& at) const {
  return make_form(options.cost, cluster, model.arch, at);
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
