// Training steps that others measured, as plans: data/training, whose README says what the columns mean.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

struct MeasuredRun {
  std::string name;
  std::string site;  // the cluster that it ran on
  double iteration_s = 0;
  TrainPlan plan;  // profile: times of the layers it has, rates of the links between its machines
};

// In the order of the file. Throws an input error that names file and line.
std::vector<MeasuredRun> read_measured_runs(const std::filesystem::path& folder);

// Whether they do the same work: model and sequences per step.
bool same_job(const MeasuredRun& a, const MeasuredRun& b);

// Settings of the form `motley` for the program that ran them: stages wait for their hops.
CostOptions measured_runs_options(double boundary_overhead_s);

// The one constant of a cluster: seconds per step and boundary between stages that make the sum of squared relative
// errors least, at least 0. Runs of one stage do not tell.
double fit_boundary_overhead_s(const std::vector<const MeasuredRun*>& runs);

}  // namespace motley
