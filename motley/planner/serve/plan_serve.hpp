// Plans serving: which devices form which stage, how many layers each holds, how many pipelines there are.
//
//   ServeOutcome outcome = plan_serve(cluster, model, workload, {.objective = Objective::throughput});
//   if (outcome.plan) write_file("plan.json", to_json(write(*outcome.plan), 2));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/concepts/planner-serve.md: the algorithm, what is exact about it, what it does not search yet.
#pragma once

#include "motley/planner/serve/pipeline/serve_problem.hpp"

namespace motley {

// What plan_serve() says of its input on whatever cluster: throws an input error for an unknown cost form or setting,
// and for a type that cannot be run or chosen.
void check_serve_options(const Model& model, const Workload& workload, const ServeOptions& options);

// Does not fit is an answer, not an error. Throws as check_serve_options() does, and an input error for a link that
// is not described and for devices that the cluster does not have.
ServeOutcome plan_serve(const Cluster& cluster, const Model& model, const Workload& workload,
                        const ServeOptions& options);

}  // namespace motley
