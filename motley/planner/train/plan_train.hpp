// Plans training.
//
//   TrainOutcome outcome = plan_train(cluster, model, workload, {.cost = {.form = "motley", .settings = {}}});
//   if (outcome.plan) write_file("plan.json", to_json(write(*outcome.plan), 1));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// motley's own form is planned by the joint search (joint.hpp). Under a published form the plan is the best of what
// that form can express: under `dtfm` a grid of single devices (grid.hpp), under `flashflex` replicas of unlike stages
// without data parallelism inside them (flashflex_layout.hpp).
#pragma once

#include "motley/planner/train/joint/joint.hpp"

namespace motley {

// That nothing fits is an answer, not an error. Throws an input error where the workload has no [training], or the
// options contradict the cluster, the model or each other.
TrainOutcome plan_train(const Cluster& cluster, const Model& model, const Workload& workload,
                        const TrainOptions& options);

}  // namespace motley
