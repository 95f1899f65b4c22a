// Which types weights get on each device type, and keys and values, under a bound on what quantising may change.
#pragma once

#include <functional>

#include "motley/planner/serve/pipeline/serve_problem.hpp"

namespace motley {

// Mean divergence to the unquantised model, each layer of a stage counting alike (data/type_quality.json).
double plan_kl(const ServePlan& plan);

// Throws an input error for a model whose weights are quantised already.
void check_types_may_be_chosen(const Model& model);

// Plans with options.most_kl set: coordinate ascent over the types of weights by device type and that of keys and
// values, from the best uniform type that fits. docs/concepts/planner-serve.md.
// `plan` is the search for given types.
ServeOutcome plan_with_chosen_types(const Cluster& cluster, const Model& model, const ServeOptions& options,
                                    const std::function<ServeOutcome(const ServeOptions&)>& plan);

}  // namespace motley
