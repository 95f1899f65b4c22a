#include "motley/cli/deploy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/event_log.hpp"
#include "motley/base/hints.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/named_model.hpp"
#include "motley/cli/serving.hpp"
#include "motley/cli/worker_program.hpp"
#include "motley/comm/net/stop_signals.hpp"
#include "motley/deployment/plan_watch.hpp"
#include "motley/report/plan_report.hpp"

namespace motley::cli {
namespace {

constexpr double requests_grace_s = 4;  // for requests under way, at the end

Value members_value(const std::vector<MemberStatus>& members) {
  Value::Array all;
  for (const MemberStatus& member : members) {
    Value::Array devices;
    for (std::size_t slot = 0; slot < member.devices.size(); ++slot) {
      const OfferedDevice& device = member.devices[slot];
      devices.push_back(Value::object({{"device", fmt::format("{}/{}", member.name, slot)},
                                       {"type", device.kind},
                                       {"memory_bytes", device.memory_bytes},
                                       {"bytes_per_s", device.bytes_per_s},
                                       {"flop_per_s", device.flop_per_s},
                                       {"threads", device.threads}}));
    }
    all.push_back(
        Value::object({{"name", member.name}, {"address", member.address}, {"devices", Value(std::move(devices))}}));
  }
  return Value(std::move(all));
}

Value events_value(const std::deque<Event>& events) {
  Value::Array all;
  for (const Event& event : events)
    all.push_back(
        Value::object({{"elapsed_s", event.elapsed_s}, {"what", event.what}, {"detail", event.detail}}));
  return Value(std::move(all));
}

// By name, beside how many are waited for.
std::set<std::string> machines_needed(const DeployOptions& options) {
  if (options.plan) return machines_of(*options.plan);
  std::set<std::string> names;
  if (options.cluster)
    for (const Machine& machine : options.cluster->machines) names.insert(machine.name);
  return names;
}

// Once the machines that are waited for are there. One that comes later may have any name.
void check_without(const std::vector<std::string>& without, const std::vector<MemberStatus>& members) {
  std::vector<std::string> devices;
  for (const MemberStatus& member : members)
    for (std::size_t slot = 0; slot < member.devices.size(); ++slot)
      devices.push_back(fmt::format("{}/{}", member.name, slot));
  for (const std::string& device : without)
    if (std::ranges::find(devices, device) == devices.end())
      throw input_error(fmt::format("--without \"{}\" is not a device of a machine that has joined", device),
                        did_you_mean(device, devices, fmt::format("there are {}", fmt::join(devices, ", "))));
}

// The deployment that signals end is still there.
struct Uncaught {
  explicit Uncaught(StopSignals& given) : signals(given) {}
  ~Uncaught() { signals.end_process_by({}); }
  Uncaught(const Uncaught&) = delete;
  Uncaught& operator=(const Uncaught&) = delete;
  StopSignals& signals;
};

}  // namespace

int deploy(const DeployOptions& options) {
  OperatorKey operator_key(options.api.operator_key);
  const std::string model = locate_model(options.model, ModelFiles::all).path;
  prepare_worker_program();

  EventLog events(shown(options.quiet));
  GatheringOptions gathered = gathering_options(options.gathering, events);
  gathered.model = model;
  const std::string name = gathered.name;
  const std::string& url = options.gathering.store;
  auto store = url.empty() ? store_of_port(options.port) : open_shared_store(url, options.standby, std::ref(events));
  if (!store) {
    events("ended", "the deployment that this driver stood by for");
    return 0;
  }
  StopSignals signals;
  gathered.stop = signals.descriptor();
  Gathering gathering(std::move(store), std::move(gathered));
  signals.end_process_by([&] {
    try {
      gathering.end();
      gathering.check_held();
    } catch (const Error& error) {
      return report_error(error);
    }
    return static_cast<int>(ErrorCode::interrupted);
  });
  const Uncaught uncaught(signals);
  Members& members = gathering.members();
  gathering.open();
  gathering.offer_weights();
  gathering.wait_for(options.wait, machines_needed(options));
  check_without(options.without, members.list());
  if (options.cluster)
    gathering.check_described(*options.cluster);
  else if (options.wait > 1 || options.plan)
    gathering.measure_links();
  SparePlans plans(options.search, options.cluster, options.without, name, members, std::ref(events));
  std::optional<ServePlan> plan = options.plan;
  if (!plan) {
    ServeOutcome outcome = plans.plan(options.quiet);
    if (!outcome.plan) throw Error(ErrorCode::negative, "does not fit: " + outcome.reason, outcome.hint);
    plan = std::move(outcome.plan);
  }
  if (!options.quiet) print_text(stderr, plan_report(*plan) + "\n");

  ServeSettings settings;
  settings.model_folder = model;
  settings.port = options.port;
  settings.drain_s = requests_grace_s;
  settings.restart.waits = true;
  settings.replan = [&](const ServePlan& before, const std::set<std::string>& lost, const Error&) {
    return plans.after_loss(before, lost);
  };
  settings.drain = [&](const std::string& member, bool revoke) {
    if (revoke) return gathering.revoke(member);
    members.drain(member);
    return std::vector<std::string>();
  };
  settings.new_link = [&](bool revoke, std::optional<double> lifetime_s) {
    return gathering.show_new_link(revoke, lifetime_s);
  };
  settings.report = std::ref(events);
  apply_api_options(options.api, operator_key, settings);
  std::optional<PlanWatchThread> watch;
  settings.on_driver = [&](Driver& driver) {
    watch.emplace(members, plans,
                  RunningPlan{.status = [&driver] { return driver.status(); },
                              .change = [&driver](ServePlan next) { driver.change_plan(std::move(next)); }},
                  !options.cluster.has_value(), std::ref(events));
  };
  settings.before_end = [&] { watch.reset(); };
  settings.deployment = [&] {
    return Value::object({{"members", members_value(members.list())},
                          {"if_lost", losses_value(plans.losses())},
                          {"events", events_value(events.newest())}});
  };
  const int code = serve_plan(*std::move(plan), members, signals, std::move(settings));
  gathering.end();
  gathering.check_held();
  return code;
}

void add_deploy_options(CLI::App& verb, DeployOptions& options) {
  add_gathering_options(verb, options.gathering);
  verb.add_option("--wait", options.wait, "Machines to wait for, this one among them (default 1)")
      ->check(CLI::Range(1, 4096));
  auto* store = add_store_option(verb, options.gathering.store, "Keep the deployment in etcd://HOST:PORT/PREFIX, not a file");
  verb.add_flag("--standby", options.standby, "Wait until the driver that holds --store is gone, then take over")
      ->needs(store);
}

}  // namespace motley::cli
