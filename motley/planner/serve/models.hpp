// Several models on one cluster: whose each device is.
#pragma once

#include <string>
#include <vector>

#include "motley/planner/serve/plan_serve.hpp"

namespace motley {

struct ModelDemand {
  Model model;
  Workload workload;  // the rates of its classes together are what the model is asked for
};

struct ModelsOutcome {
  std::vector<ServePlan> plans;  // one per model, in their order; the devices of others are among the unused ones
  double share = 0;              // requests per second served over those asked for, of the model that has least
  bool exact = false;            // no other division of the devices among the models gives the closed form a larger one
  std::string reason;            // where there are no plans
  std::string hint;
};

// Maximises the share. Devices that fall into few classes are divided exactly: by dynamic programming over how many of
// each class a model gets, from the worth of its best partition of them. Otherwise whole machines are dealt out and
// then moved from the model that has most to the one that has least while that helps. Throws input errors as plan_serve
// does, and where a workload has no rate.
ModelsOutcome plan_models(const Cluster& cluster, const std::vector<ModelDemand>& models, const ServeOptions& options);

}  // namespace motley
