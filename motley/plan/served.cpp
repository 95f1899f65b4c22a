#include "motley/plan/served.hpp"

#include <fmt/format.h>

namespace motley {

std::vector<Violation> not_served(const ServePlan& plan) {
  std::vector<Violation> reasons;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const auto add = [&](const char* key, std::string what, const std::string& hint) {
      reasons.push_back({fmt::format("stages[{}].{}", i, key), std::move(what), hint});
    };
    if (stage.role != StageRole::any)
      add("role", fmt::format("stages that only {} are not served yet", name_of(stage.role)), "plan with --no-roles");
    const auto check = [&](DType type, Use use, const char* key, const char* option) {
      const std::string hint = fmt::format("plan with {} {}", option, names_with(Support::served, use));
      if (!supports(type, Support::served, use))
        add(key, fmt::format("workers do not compute in {} yet", name_of(type)), hint);
    };
    check(stage.weight_type, Use::weights, "weight_type", "--weight-type");
    const bool weights_served = supports(stage.weight_type, Support::served, Use::weights);
    check(stage.kv_type, Use::kv, "kv_type", weights_served ? "--kv-type" : "--weight-type");
  }
  for (std::size_t r = 0; r < plan.routes.size(); ++r)
    for (std::size_t hop = 0; hop < plan.routes[r].path.size(); ++hop) {
      const std::string& stage = plan.routes[r].path[hop].stage;
      if (plan.routes[r].path[hop].layers != plan.stage(stage).layers)
        reasons.push_back({fmt::format("routes[{}].path[{}]", r, hop),
                           fmt::format("the route runs a part of stage \"{}\" alone, which is not served yet", stage),
                           "plan without --partial-ranges"});
      const std::int64_t batches = plan.stage(stage).batches();
      if (batches > 1 && plan.routes[r].path.size() > 1)
        reasons.push_back({fmt::format("routes[{}].path[{}]", r, hop),
                           fmt::format("stage \"{}\" has {} micro-batches to a pass over its weights, which is served "
                                       "only where it is the route's one stage",
                                       stage, batches),
                           "set `batches` to 1, and `step` to larger micro-batches"});
    }
  return reasons;
}

}  // namespace motley
