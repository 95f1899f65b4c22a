// Plans serving: which devices form which stage, how many layers each holds, how many pipelines there are.
//
//   ServeOutcome outcome = plan_serve(cluster, model, workload, {.objective = Objective::throughput});
//   if (outcome.plan) write_file("plan.json", to_json(write(*outcome.plan), 2));
//   else fmt::print("{}\n{}\n", outcome.reason, outcome.hint);
//
// docs/planner-serve.md: the algorithm, what is exact about it, what it does not search yet.
#pragma once

#include "motley/planner/serve/pipeline/problem.hpp"

namespace motley {

// Does not fit is an answer, not an error. Throws an input error for an unknown cost form or setting, a link that
// nobody described, a weight type that cannot be run.
ServeOutcome plan_serve(const Cluster& cluster, const Model& model, const Workload& workload,
                        const ServeOptions& options);

}  // namespace motley
