#include <fmt/format.h>

#include "motley/cli/api_options.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/deploy.hpp"
#include "motley/cli/planning_options.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/planner/serve/plan_again.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/serving/local_deployment.hpp"

namespace motley::cli {
namespace {

// For what the members offer, as this plan was made.
PlanSearch search_like(const ServePlan& plan) {
  return [plan](const Cluster& cluster, const std::vector<std::string>& excluded, bool) {
    ServeOptions search = options_of(plan);
    search.excluded = excluded;
    return plan_serve(cluster, plan.model, plan.workload, search);
  };
}

struct ServeVerbOptions {
  ServingOptions serving;
  std::string host = "127.0.0.1";
  int port = 8000;
  ApiOptions api;
  bool insecure = false;
  bool local = false;
  bool agents = false;
  DeployOptions deploy;
  bool dry_run = false;
  bool quiet = false;
};

int start_serving(const ServeVerbOptions& options) {
  const ServePlan plan = serving_plan(options.serving);
  if (options.dry_run) {
    print_text(stdout, plan_report(plan));
    fmt::print("\nwould start {} worker processes on this machine and listen on http://{}:{}\n",
               plan.predicted.memory_bytes.size(), options.host, options.port);
    return 0;
  }
  if (!options.quiet && options.serving.plan.empty()) print_text(stderr, plan_report(plan) + "\n");
  if (options.agents) {
    DeployOptions deployment = options.deploy;
    deployment.model = options.serving.planning.model;
    deployment.plans.plan = plan;
    deployment.plans.search = search_like(plan);
    deployment.port = options.port;
    deployment.api = options.api;
    deployment.quiet = options.quiet;
    return deploy(std::move(deployment));
  }
  if (!options.local && options.serving.backend == "cpu")
    throw input_error("--local or --agents is missing: where are the plan's devices?",
                      "give --local to run each as a CPU worker process on this machine, or --agents");
  EventLog events(shown(options.quiet));
  ServeSettings settings = serve_settings(options.serving, plan, events);
  settings.host = options.host;
  settings.port = options.port;
  settings.insecure = options.insecure;
  OperatorKey key(options.api.operator_key);
  apply_api_options(options.api, key, settings);
  LocalDeployment deployment(local_fleet(options.serving));
  StopSignals signals(interrupted);
  serve(plan, deployment, signals, settings, key);
  return 0;
}

}  // namespace

void add_serve(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<ServeVerbOptions>(
      parent, action, "serve", "Serve a plan: one worker process per device, behind an OpenAI API", start_serving);
  verb->footer(
      "examples:\n"
      "  motley serve plan.json --model DIR --local\n"
      "  motley serve --cluster examples/garage/cluster.toml --model data/models/tales --local      plan first\n"
      "  motley serve plan.json --model DIR --agents     on the machines that the plan names, once they have joined\n"
      "  curl http://127.0.0.1:8000/plan                        show the plan that runs, with measured figures");
  add_serving_options(*verb, options->serving);
  verb->add_option("--host", options->host, "Address to listen on (default 127.0.0.1)")->type_name("ADDRESS");
  verb->add_option("--port", options->port, "Port to listen on; 0 is any free one (default 8000)")
      ->check(CLI::Range(0, 65535));
  add_api_options(*verb, options->api);
  verb->add_flag("--insecure", options->insecure, "Allow an address that other machines can reach, without TLS");
  verb->add_flag("--local", options->local, "Run each device as a worker process on this machine");
  verb->add_flag("--agents", options->agents, "Run the plan on the machines that it names, which join as with `up`")
      ->excludes("--local");
  add_deploy_options(*verb, options->deploy);
  verb->add_flag("--dry-run", options->dry_run, "Show the plan and the workers, and start nothing");
  verb->add_flag("-q,--quiet", options->quiet, "Print no progress on stderr");
}

}  // namespace motley::cli
