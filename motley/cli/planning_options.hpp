// The options of planning, shared by the verbs that plan: `plan serve`, and `serve` without a plan file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "motley/planner/serve/models.hpp"

namespace motley::cli {

struct PlanningOptions {
  std::string cluster, model, workload, profile;
  std::vector<std::string> models, workloads;  // as often as they were given; `model` and `workload` are the first
  std::string objective = "slo";
  std::string cost = "motley";
  std::vector<std::string> settings;  // KEY=VALUE
  std::string weight_type, kv_type, crossing_type;
  std::string standby_weights;  // a size; empty: none
  double max_kl = 0;            // 0: not given
  std::string deadline = "10 s";
  std::uint64_t seed = 0;
  int threads = 0;  // 0: all cores
  bool all_devices = false;
  bool across_machines = false;
  bool one_pipeline = false;
  bool front = false;
  std::string from;                  // a plan to replan after a loss
  std::vector<std::string> without;  // devices
  bool partial_ranges = false;
  bool no_roles = false;
  bool no_offload = false;
  std::int64_t max_batch = 1024;
  std::int64_t context = 0;  // tokens; 0: the model's own
  StepLimits step;
};

void add_planning_options(CLI::App& verb, PlanningOptions& options, const std::string& model_help);
// Requests that the model could never serve are a mistake of the workload file; the assumed workload (no file) is only
// an assumption.
void check_context(const std::string& file, const Model& model, const Workload& workload);
// --context: also beyond what the model was made for, which a warning says.
void add_context_option(CLI::App& verb, std::int64_t& context);
void choose_context(Model& model, std::int64_t context, bool quiet = false);
struct NamedModels {
  std::vector<ModelDemand> models;
  ModelsOutcome outcome;
};
// Several models; one workload each.
NamedModels plan_models_from_options(const PlanningOptions& options, bool quiet);
ServeOutcome plan_from_options(const PlanningOptions& options, bool quiet);

// All that planning goes by but the cluster.
struct PlanningInputs {
  Model model;
  Workload workload;
  ServeOptions search;
};
// Reads the files that the options name. Throws whatever planning would find wrong with them on any cluster.
PlanningInputs planning_inputs(const PlanningOptions& options, bool quiet);
ServeOutcome plan_for_cluster(const Cluster& cluster, const PlanningInputs& inputs, bool quiet);

// "hexgen.batch=4" lines for a cost form's own constants.
CostOptions cost_options(const std::string& form, const std::vector<std::string>& settings);
// `forms` and `example` are for people.
void add_cost_options(CLI::App& verb, std::string& form, std::vector<std::string>& settings, const std::string& forms,
                      const std::string& example);

}  // namespace motley::cli
