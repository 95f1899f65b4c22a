#include "motley/serving/local_deployment.hpp"

#include "motley/base/error.hpp"
#include "motley/planner/serve/plan_again.hpp"
#include "motley/planner/serve/replan.hpp"

namespace motley {

Replan LocalDeployment::replan() {
  return [](const ServePlan& before, const std::set<std::string>& lost) {
    ServeOutcome outcome = replan_serve(before, {lost.begin(), lost.end()}, options_of(before));
    if (!outcome.plan) throw Error(ErrorCode::negative, "does not fit: " + outcome.reason, outcome.hint);
    return std::move(outcome.plan);
  };
}

}  // namespace motley
