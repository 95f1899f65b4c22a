#include "motley/cli/deploy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <cstdio>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/hints.hpp"
#include "motley/base/units.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/coordination.hpp"
#include "motley/cli/deployment_store.hpp"
#include "motley/cli/own_agent.hpp"
#include "motley/cli/serving.hpp"
#include "motley/cli/worker_program.hpp"
#include "motley/deployment/plan_watch.hpp"
#include "motley/fleet/needed_chunks.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley::cli {
namespace {

constexpr double agents_grace_s = 4;      // for agents to end their workers
constexpr double requests_grace_s = 4;    // for requests under way, at the end
constexpr double address_pause_s = 1;     // between attempts to listen where the driver before this one did
constexpr double probe_s = 2;             // of traffic between the machines, before the first plan
constexpr std::size_t most_events = 100;  // that GET /plan shows

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

bool is_held(const DeploymentStore& store) {
  try {
    store.check_held();
  } catch (const Error&) {
    return false;
  }
  return true;
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

// Runs when it is left, however that is.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> action) : action_(std::move(action)) {}
  ~AtEnd() { action_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  const std::function<void()> action_;
};

}  // namespace

int deploy(const DeployOptions& options) {
  OperatorKey operator_key(options.api.operator_key);
  const std::string model = locate_model(options.model, ModelFiles::all).path;
  const std::string name = machine_name(options.machine);
  const double lifetime_s = token_lifetime_s(options.token_lifetime);
  offered_memory_bytes(options.machine);  // throws here rather than in this machine's agent
  const Checkpoint checkpoint(model);
  const std::filesystem::path digests = user_folder("XDG_CACHE_HOME", ".cache") / "digests";
  prepare_worker_program();

  std::mutex report_mutex;
  const Instant start = Clock::now();
  std::deque<Value> events;
  const auto report = [&](const std::string& what, const std::string& detail) {
    const std::lock_guard lock(report_mutex);
    const double elapsed_s = seconds_since(start);
    if (!options.quiet) print_phase(what, detail, elapsed_s);
    if (detail.ends_with('%')) return;
    events.push_back(Value::object({{"elapsed_s", elapsed_s}, {"what", what}, {"detail", detail}}));
    if (events.size() > most_events) events.pop_front();
  };

  const std::unique_ptr<DeploymentStore> store =
      options.store.empty() ? store_of_port(options.port) : open_shared_store(options.store, options.standby, report);
  if (!store) {
    report("ended", "the deployment that this driver stood by for");
    return 0;
  }
  const EarlySignals signals;
  const auto stays = [&] {
    pollfd waiting{signals.descriptor(), POLLIN, 0};
    return ::poll(&waiting, 1, static_cast<int>(address_pause_s * 1e3)) == 0;
  };
  Coordination coordination(*store, {.host = options.listen,
                                     .name = name,
                                     .relays = options.relays,
                                     .most_handshakes = options.most_handshakes,
                                     .report = report,
                                     .waits = store->is_shared() ? stays : std::function<bool()>()});
  const DeploymentGroup& group = *coordination.group;
  Members& members = *coordination.members;
  const JoinLink link = coordination.link(lifetime_s);
  OwnAgent own_agent(to_text(coordination.own_link(link)), agent_arguments(options.machine, name, model));
  std::once_flag ended;
  const auto end = [&] {
    std::call_once(ended, [&] {
      if (is_held(*store)) {
        members.end(agents_grace_s);
        coordination.forget();
      } else {
        own_agent.kill();
        members.leave();  // the other machines are another driver's
      }
    });
  };
  const AtEnd at_end(end);
  // From here on nothing asks for signals: until a server catches them, they end the deployment whatever is under way.
  const EndOnSignal end_on_signal(signals, [&] {
    end();
    store->check_held();
  });
  const auto never = [] { return false; };
  print_link_after(own_agent, name, members, link, never);

  const ModelManifest manifest = make_manifest(
      model, digests, [&](double fraction) { report("digests", fmt::format("{:.0f} %", 100 * fraction)); });
  const std::filesystem::path path(model);
  members.offer_weights(manifest, manifest.opens.empty() ? path : path.parent_path());

  const std::set<std::string> needed = machines_needed(options);
  report("waiting", needed.empty() ? fmt::format("for {}", counted(static_cast<std::size_t>(options.wait), "machine"))
                                   : fmt::format("for {}", fmt::join(needed, ", ")));
  wait_for_members(members, options.wait, needed, never);
  check_without(options.without, members.list());
  if (options.cluster) {
    check_described(*options.cluster, members.list());
  } else if (options.wait > 1 || options.plan) {
    report("links", "are measured, one pair after the other");
    for (const MachineLink& measured : members.measure_links(probe_s, signals.descriptor()))
      if (measured.from < measured.to) report("links", describe(measured));
  }
  SparePlans plans(options.search, options.cluster, options.without, name, members, report);
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
  const auto chunks_of = [&](const ServePlan& of, ChunksOf which = ChunksOf::own_layers) {
    return [&, which](const std::string& device) { return needed_chunks(of, device, checkpoint, manifest, which); };
  };
  settings.start_workers = [&](const ServePlan& started, std::uint64_t epoch, const CacheHandover& handover,
                               Workers& earlier) {
    return members.start_workers(started, epoch, handover, chunks_of(started), earlier);
  };
  settings.prepare_workers = [&](const ServePlan& prepared, const std::set<std::string>& running) {
    return members.prepare_workers(prepared, running, chunks_of(prepared));
  };
  settings.fetch_standby = [&](const ServePlan& served) {
    const std::vector<std::string> running = worker_devices(served);
    return members.prepare_workers(served, {running.begin(), running.end()}, chunks_of(served, ChunksOf::standby_too));
  };
  settings.drain = [&](const std::string& member, bool revoke) {
    if (!revoke) {
      members.drain(member);
      return std::vector<std::string>();
    }
    const std::vector<std::string> same_link = coordination.revoke(member);
    report("revoked", fmt::format("{}, and every link so far; the new one is printed", member));
    for (const std::string& other : same_link)
      report("revoked", fmt::format("not {}, which came by the same link: motley drain {} --revoke", other, other));
    print_link(coordination.link(lifetime_s));
    return same_link;
  };
  settings.new_link = [&](bool revoke, std::optional<double> asked_s) {
    const double for_s = asked_s.value_or(lifetime_s);
    if (revoke) group.admission().revoke_tokens();
    print_link(coordination.link(for_s));
    report("link", fmt::format("a new one is printed, for {}{}", human_seconds(for_s),
                               revoke ? "; those before it are revoked" : ""));
    return for_s;
  };
  settings.report = [&](const std::string& what, const std::string& detail, double) { report(what, detail); };
  apply_api_options(options.api, operator_key, settings);
  std::optional<PlanWatchThread> watch;
  settings.on_driver = [&](Driver& driver) {
    watch.emplace(members, plans,
                  RunningPlan{.status = [&driver] { return driver.status(); },
                              .change = [&driver](ServePlan next) { driver.change_plan(std::move(next)); }},
                  !options.cluster.has_value(), report);
  };
  settings.before_end = [&] { watch.reset(); };
  settings.on_abort = end;
  settings.deployment = [&] {
    Value there = members_value(members.list());  // not under the lock: members report under theirs
    const std::lock_guard lock(report_mutex);
    return Value::object({{"members", std::move(there)},
                          {"if_lost", losses_value(plans.losses())},
                          {"events", Value(Value::Array(events.begin(), events.end()))}});
  };
  const int code = serve_plan(*std::move(plan), std::move(settings));
  end();
  store->check_held();
  return code;
}

void add_deploy_options(CLI::App& verb, DeployOptions& options) {
  add_group_options(verb, options.machine, options.listen, options.token_lifetime);
  add_relay_option(verb, options.relays);
  add_handshakes_option(verb, options.most_handshakes);
  verb.add_option("--wait", options.wait, "Machines to wait for, this one among them (default 1)")
      ->check(CLI::Range(1, 4096));
  auto* store = add_store_option(verb, options.store, "Keep the deployment in etcd://HOST:PORT/PREFIX, not a file");
  verb.add_flag("--standby", options.standby, "Wait until the driver that holds --store is gone, then take over")
      ->needs(store);
}

}  // namespace motley::cli
