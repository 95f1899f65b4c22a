// A deployment over the machines that join it, from its group to its orderly end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/cli/api_options.hpp"
#include "motley/cli/gathering_options.hpp"
#include "motley/deployment/spare_plans.hpp"

namespace motley::cli {

struct DeployOptions {
  std::string model;  // as --model names it
  PlanSearch search;
  std::optional<Cluster> cluster;  // what is planned with in place of the members' reports; its machines are waited for
  std::optional<ServePlan> plan;   // the first one, if it was made before: its machines are waited for
  std::vector<std::string> without;  // devices that no plan uses
  GatheringFlags gathering;
  bool standby = false;  // waits until the driver that holds the store is gone
  ApiOptions api;
  int port = 8000;  // of the API, on 127.0.0.1
  int wait = 1;     // for so many machines, this one among them
  bool quiet = false;
};

// --wait, --standby, --store and the options of what brings machines together.
void add_deploy_options(CLI::App& verb, DeployOptions& options);

// Prints the line by which machines join, waits for them, plans and serves until a signal; ends the deployment on all
// machines. Returns the exit code. Throws what hinders the start.
int deploy(const DeployOptions& options);

}  // namespace motley::cli
