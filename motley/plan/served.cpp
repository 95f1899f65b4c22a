#include "motley/plan/served.hpp"

#include <fmt/format.h>

namespace motley {

bool is_served(DType type) { return type == DType::fp32 || type == DType::bf16; }

std::vector<Violation> not_served(const ServePlan& plan) {
  std::vector<Violation> reasons;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto add = [&](const char* key, std::string what, const char* hint) {
      reasons.push_back({fmt::format("stages[{}].{}", i, key), std::move(what), hint});
    };
    if (stage.role != StageRole::any)
      add("role", fmt::format("stages that only {} are not served yet", name_of(stage.role)), "plan with --no-roles");
    const auto check = [&](DType type, const char* key, const char* hint) {
      if (!is_served(type)) add(key, fmt::format("workers do not compute in {} yet", name_of(type)), hint);
    };
    check(stage.weight_type, "weight_type", "plan with --weight-type bf16 or fp32");
    check(stage.kv_type, "kv_type",
          is_served(stage.weight_type) ? "plan with --kv-type bf16 or fp32" : "plan with --weight-type bf16 or fp32");
  }
  for (std::size_t r = 0; r < plan.routes.size(); ++r)
    for (std::size_t hop = 0; hop < plan.routes[r].path.size(); ++hop) {
      const auto& [stage, layers] = plan.routes[r].path[hop];
      if (layers != plan.stage(stage).layers)
        reasons.push_back({fmt::format("routes[{}].path[{}]", r, hop),
                           fmt::format("the route runs a part of stage \"{}\" alone, which is not served yet", stage),
                           "plan without --partial-ranges"});
    }
  return reasons;
}

}  // namespace motley
