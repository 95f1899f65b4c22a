// A deployment over the machines that join it, from its group to its orderly end.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "motley/cli/api_options.hpp"
#include "motley/cli/gathering_options.hpp"
#include "motley/serving/joined_deployment.hpp"

namespace motley::cli {

struct DeployOptions {
  std::string model;  // as --model names it
  JoinedDeploymentOptions plans;
  GatheringFlags gathering;
  bool standby = false;  // waits until the driver that holds the store is gone
  ApiOptions api;
  int port = 8000;  // of the API, on 127.0.0.1
  bool quiet = false;
};

// --wait, --store, --standby and the options of what brings machines together.
void add_deploy_options(CLI::App& verb, DeployOptions& options);

// Prints the line by which machines join, waits for them, plans and serves until a signal; ends the deployment on all
// machines. Returns the exit code. Throws what hinders the start.
int deploy(DeployOptions options);

}  // namespace motley::cli
