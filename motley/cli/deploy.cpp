#include "motley/cli/deploy.hpp"

#include <cstdio>
#include <functional>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/event_log.hpp"
#include "motley/base/worker_program.hpp"
#include "motley/checkpoint/checkpoint.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/comm/net/stop_signals.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/report/plan_report.hpp"

namespace motley::cli {
namespace {

constexpr double requests_grace_s = 4;  // for requests under way, at the end

// What a signal does, whatever is under way.
int end_on_signal(JoinedDeployment& deployment) {
  try {
    deployment.end();
  } catch (const Error& error) {
    return report_error(error);
  }
  return static_cast<int>(ErrorCode::interrupted);
}

}  // namespace

int deploy(DeployOptions options) {
  ServeSettings settings;
  settings.model_folder = locate_model(options.model, ModelFiles::all).path;
  Checkpoint{settings.model_folder};  // throws where it cannot be read
  settings.port = options.port;
  settings.drain_s = requests_grace_s;
  EventLog events(shown(options.quiet));
  settings.report = std::ref(events);
  OperatorKey key(options.api.operator_key);
  apply_api_options(options.api, key, settings);
  GatheringOptions gathered = gathering_options(options.gathering, events);
  gathered.model = settings.model_folder;
  prepare_worker_program();
  const std::string& url = options.gathering.store;
  auto store = url.empty() ? store_of_port(options.port) : open_shared_store(url, options.standby, std::ref(events));
  if (!store) {
    events("ended", "the deployment that this driver stood by for");
    return 0;
  }
  StopSignals signals;
  gathered.stop = signals.descriptor();
  options.plans.quiet = options.quiet;
  JoinedDeployment deployment(std::move(store), std::move(gathered), std::move(options.plans), events);
  const EndOnSignal end(signals, [&deployment] { return end_on_signal(deployment); });
  const ServePlan plan = deployment.first_plan();
  if (!options.quiet) print_text(stderr, plan_report(plan) + "\n");
  serve(plan, deployment, signals, settings, key);
  deployment.end();
  return 0;
}

void add_deploy_options(CLI::App& verb, DeployOptions& options) {
  add_gathering_options(verb, options.gathering);
  verb.add_option("--wait", options.plans.wait, "Machines to wait for, this one among them (default 1)")
      ->check(CLI::Range(1, 4096));
  auto* store =
      add_store_option(verb, options.gathering.store, "Keep the deployment in etcd://HOST:PORT/PREFIX, not a file");
  verb.add_flag("--standby", options.standby, "Wait until the driver that holds --store is gone, then take over")
      ->needs(store);
}

}  // namespace motley::cli
