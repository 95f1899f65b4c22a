#include <utility>

#include "motley/base/error.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/deploy.hpp"
#include "motley/cli/serving_options.hpp"

namespace motley::cli {
namespace {

struct UpOptions {
  PlanningOptions planning;
  DeployOptions deploy;
};

int up(const UpOptions& given) {
  UpOptions options = given;
  if (options.planning.model.empty())
    throw input_error("--model is missing", "give the model to be served: --model MODEL");
  options.planning.no_roles = true;  // the driver does not run them yet
  require_served_types(options.planning);
  PlanningInputs inputs = planning_inputs(options.planning, options.deploy.quiet);
  options.deploy.model = options.planning.model;
  options.deploy.plans.without = std::exchange(inputs.search.excluded, {});
  if (!options.planning.cluster.empty()) {
    options.deploy.plans.cluster = read_cluster(options.planning.cluster);
    for (const std::string& device : options.deploy.plans.without) options.deploy.plans.cluster->find_device(device);
  }
  options.deploy.plans.search = [inputs = std::move(inputs)](const Cluster& cluster,
                                                             const std::vector<std::string>& excluded, bool quiet) {
    PlanningInputs search = inputs;
    search.search.excluded = excluded;
    return plan_for_cluster(cluster, search, quiet);
  };
  return deploy(std::move(options.deploy));
}

}  // namespace

void add_up(CLI::App& parent, Action& action) {
  const auto [verb, options] =
      add_verb<UpOptions>(parent, action, "up", "Serve a model on this machine and all that join it", up);
  verb->footer(
      "Prints the command by which other machines join, waits for as many as --wait says, plans over all of them,\n"
      "and serves. A machine that joins later is planned in where that pays; one that is lost is planned around, and\n"
      "requests go on. Connections between machines use TLS 1.3 with certificates on both sides. Ctrl-C ends the\n"
      "deployment on all machines; one that was killed goes on when it is started again on the same port.\n"
      "\n"
      "examples:\n"
      "  motley up --model data/models/tales --wait 3\n"
      "  motley up --model DIR --cluster cluster.toml    wait for its machines, and plan with its speeds and links\n"
      "  motley up --model FILE.gguf --memory \"16 GiB\" --port 8080\n"
      "  motley up --model DIR --store etcd://10.0.0.9:2379/a              survive the loss of this machine\n"
      "  motley up --model DIR --store etcd://10.0.0.9:2379/a --standby    wait on another one for that\n"
      "  motley deployment status                                          members, stages and load, from another "
      "terminal");
  add_planning_options(*verb, options->planning, "Model folder, GGUF file, or OWNER/NAME[:FILE.gguf] on the hub");
  add_deploy_options(*verb, options->deploy);
  verb->add_option("--port", options->deploy.port, "Port of the API on 127.0.0.1; 0 is any free one (default 8000)")
      ->check(CLI::Range(0, 65535));
  add_api_options(*verb, options->deploy.api);
  verb->add_flag("-q,--quiet", options->deploy.quiet, "Print no progress on stderr");
}

}  // namespace motley::cli
