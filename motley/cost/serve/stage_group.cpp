#include "motley/cost/serve/stage_group.hpp"

#include <utility>

namespace motley {

TensorGroup stage_group(const ServePlan& plan, const Stage& stage) {
  std::vector<int> devices;
  for (const std::string& name : stage.devices) devices.push_back(plan.cluster.find_device(name));
  return make_group(plan.cluster, plan.model.arch, std::move(devices), stage.shares, stage.weight_type, stage.kv_type,
                    plan.step, stage.expert_shares);
}

}  // namespace motley
