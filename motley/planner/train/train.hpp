// Plans training.
//
//   TrainOutcome outcome = plan_train(cluster, model, workload, {.cost = {.form = "flashflex"}});
//   if (outcome.plan) write_file("plan.json", to_json(write_train_plan(*outcome.plan), 1));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/planner-train.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "motley/cost/train_cost.hpp"
#include "motley/plan/train.hpp"

namespace motley {

struct TrainOptions {
  CostOptions cost = {.form = "flashflex", .settings = {}};
  std::int64_t stages = 0;    // of every replica; 0: the planner chooses
  std::int64_t replicas = 0;  // 0: the planner chooses
  std::uint64_t seed = 0;
  double deadline_s = 10;
};

struct TrainOutcome {
  std::optional<TrainPlan> plan;
  std::string reason;  // where there is none
  std::string hint;    // the nearest thing that would work
};

// That nothing fits is an answer, not an error. Throws an input error where the workload has no [training], or the
// options contradict the cluster, the model or each other.
TrainOutcome plan_train(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options);

}  // namespace motley
