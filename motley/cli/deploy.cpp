#include "motley/cli/deploy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "motley/agent/cluster_of.hpp"
#include "motley/agent/deployment_group.hpp"
#include "motley/agent/members.hpp"
#include "motley/agent/needed_chunks.hpp"
#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/deployment_file.hpp"
#include "motley/cli/named_model.hpp"
#include "motley/cli/own_agent.hpp"
#include "motley/cli/serving.hpp"
#include "motley/cli/worker_program.hpp"
#include "motley/cluster/slowed.hpp"
#include "motley/deployment/slow_devices.hpp"
#include "motley/planner/serve/grouping/write.hpp"
#include "motley/planner/serve/replan.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley::cli {
namespace {

constexpr double agents_grace_s = 4;      // for agents to end their workers
constexpr double requests_grace_s = 4;    // for requests under way, at the end
constexpr double probe_s = 2;             // of traffic between the machines, before the first plan
constexpr double look_s = 1;              // between looks whether a plan is served at all, and devices became slow
constexpr double settle_s = 1;            // after a change among the members, before a plan is made for it
constexpr double worth_moving = 1.1;      // times the tokens/s of the plan in force
constexpr std::size_t most_events = 100;  // that GET /plan shows

class MemberPlans {
 public:
  MemberPlans(const DeployOptions& options, const Members& members) : options_(options), members_(members) {}

  // Over all members but these devices; none where nothing fits. As far as it costs nothing, devices keep the places
  // that they have in `before`.
  ServeOutcome plan(const std::set<std::string>& lost, bool quiet, const ServePlan* before = nullptr) const {
    const std::vector<MemberStatus> there = members_.list();
    if (there.empty()) return {.plan = {}, .reason = "no machine is there", .hint = {}, .front = {}};
    const Cluster cluster = cluster_now(there);
    const auto is_there = [&](const Device& device) {
      const std::string& machine = cluster.machines[static_cast<std::size_t>(device.machine)].name;
      return std::ranges::find(there, machine, &MemberStatus::name) != there.end();
    };
    std::vector<std::string> excluded;
    for (const Device& device : cluster.devices)
      if (lost.contains(device.name) || !is_there(device)) excluded.push_back(device.name);
    if (excluded.size() == cluster.devices.size())
      return {.plan = {}, .reason = "no device is left", .hint = {}, .front = {}};
    ServeOutcome outcome = options_.search(cluster, excluded, quiet);
    if (outcome.plan && before != nullptr)
      outcome.plan = keep_places(*std::move(outcome.plan), *before, excluded, options_of(*outcome.plan).cost);
    return outcome;
  }

  // What `plan` is predicted to bring by what is known of its devices and links now.
  double tokens_per_s(ServePlan plan) const {
    Cluster cluster = cluster_now(members_.list());
    for (const Device& device : plan.cluster.devices)
      if (std::ranges::find(cluster.devices, device.name, &Device::name) == cluster.devices.end())
        return plan.predicted.tokens_per_s;
    plan.cluster = std::move(cluster);
    predict(plan, options_of(plan).cost);
    return plan.predicted.tokens_per_s;
  }

  // From now on plans are made with devices that are so many times slower than they were measured.
  void set_slow(std::map<std::string, double> factors) {
    const std::lock_guard lock(mutex_);
    slow_ = std::move(factors);
  }

  static std::set<std::string> machines_of(const ServePlan& plan) {
    std::set<std::string> names;
    for (const Stage& stage : plan.stages)
      for (const std::string& device : stage.devices) names.insert(machine_of(device));
    return names;
  }

 private:
  Cluster cluster_now(const std::vector<MemberStatus>& there) const {
    Cluster cluster = options_.cluster ? *options_.cluster : cluster_of(there, members_.links(), assumed_network());
    const std::lock_guard lock(mutex_);
    return slow_.empty() ? cluster : slowed(cluster, slow_);
  }

  const DeployOptions& options_;
  const Members& members_;
  mutable std::mutex mutex_;
  std::map<std::string, double> slow_;  // guarded
};

std::string moves_of(const ServePlan& before, const ServePlan& after) {
  const WeightMoves moves = weight_moves(before, after);
  return fmt::format("{} of layers stay where they are, {} are loaded",
                     human_bytes(static_cast<double>(moves.kept_bytes)),
                     human_bytes(static_cast<double>(moves.loaded_bytes)));
}

// Watches the members while a plan is served, and brings another where that pays.
class Replanning {
 public:
  Replanning(Members& members, MemberPlans& plans, Driver& driver,
             std::function<void(const std::string&, const std::string&)> report)
      : members_(members),
        plans_(plans),
        driver_(driver),
        report_(std::move(report)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~Replanning() {
    thread_.request_stop();
    wake_.notify();
  }
  Replanning(const Replanning&) = delete;
  Replanning& operator=(const Replanning&) = delete;

 private:
  void run(const std::stop_token& stop) {
    Instant due = no_deadline;
    while (!stop.stop_requested()) {
      std::array<pollfd, 2> waiting{pollfd{members_.changed(), POLLIN, 0}, pollfd{wake_.descriptor(), POLLIN, 0}};
      ::poll(waiting.data(), waiting.size(), poll_timeout_ms(std::min(due, deadline_in(look_s))));
      if (stop.stop_requested()) return;
      if (waiting[0].revents != 0) {
        members_.clear_changed();
        due = deadline_in(must_move() ? 0 : settle_s);
      }
      if (due == no_deadline && looks_for_slow()) due = Clock::now();
      // Devices that were lost by their workers' deaths are tried again.
      if (due == no_deadline && driver_.status().phase == DeploymentPhase::down)
        due = deadline_in(RestartRule().away_s);
      if (seconds_until(due) > 0) continue;
      due = no_deadline;
      try {
        if (!replan()) due = deadline_in(settle_s);
      } catch (const Error& error) {
        report_("plan", fmt::format("no change: {}", error.what()));
      }
    }
  }

  // Somebody that the plan uses wants to leave, or nothing is served. After a loss the driver itself asks for a plan.
  bool must_move() const {
    const DriverStatus status = driver_.status();
    const auto used = MemberPlans::machines_of(*status.plan);
    return status.phase == DeploymentPhase::down ||
           std::ranges::any_of(members_.leaving(), [&](const std::string& name) { return used.contains(name); });
  }

  bool looks_for_slow() {
    const DriverStatus status = driver_.status();
    std::set<std::string> serving;
    for (const WorkerStatus& worker : status.workers) serving.insert(worker.device);
    if (!slow_.note(status.slow, serving, status.uptime_s)) return false;
    plans_.set_slow(slow_.factors());
    return true;
  }

  // False: not now.
  bool replan() {
    const DriverStatus status = driver_.status();
    if (status.phase != DeploymentPhase::serving && status.phase != DeploymentPhase::down) return false;
    ServeOutcome outcome = plans_.plan({}, true, status.plan.get());
    if (!outcome.plan) {
      report_("plan", fmt::format("nothing fits the members that are there: {}", outcome.reason));
      return true;
    }
    const double now = plans_.tokens_per_s(*status.plan), then = outcome.plan->predicted.tokens_per_s;
    if (!must_move() && then < worth_moving * now) return true;
    report_("plan", fmt::format("another pays: {:.0f} tokens/s are predicted over {}, {:.0f} before; {}", then,
                                counted(MemberPlans::machines_of(*outcome.plan).size(), "machine"), now,
                                moves_of(*status.plan, *outcome.plan)));
    driver_.change_plan(std::move(*outcome.plan));
    return true;
  }

  Members& members_;
  MemberPlans& plans_;
  Driver& driver_;
  const std::function<void(const std::string&, const std::string&)> report_;
  SlowDevices slow_;
  Wakeup wake_;
  std::jthread thread_;
};

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

// By name, beside how many are waited for.
std::set<std::string> machines_needed(const DeployOptions& options) {
  if (options.plan) return MemberPlans::machines_of(*options.plan);
  std::set<std::string> names;
  if (options.cluster)
    for (const Machine& machine : options.cluster->machines) names.insert(machine.name);
  return names;
}

// A described machine must be what its agent offers.
void check_described(const Cluster& cluster, const std::vector<MemberStatus>& members) {
  for (const Machine& machine : cluster.machines) {
    const auto member = std::ranges::find(members, machine.name, &MemberStatus::name);
    if (member == members.end()) continue;
    if (machine.devices.size() != member->devices.size())
      throw input_error(fmt::format("the cluster file gives {} {}, and its agent offers {}", machine.name,
                                    counted(machine.devices.size(), "device"), member->devices.size()),
                        "describe each machine with its processor as one device");
    for (std::size_t slot = 0; slot < machine.devices.size(); ++slot)
      if (const auto described = cluster.type_of(machine.devices[slot]).memory_bytes,
          offered = member->devices[slot].memory_bytes;
          described > offered)
        throw input_error(
            fmt::format("the cluster file gives {}/{} {}, and its agent offers {}", machine.name, slot,
                        human_bytes(static_cast<double>(described)), human_bytes(static_cast<double>(offered))),
            "describe less memory, or start the agent with a larger --memory");
  }
}

// False: a signal came.
bool wait_for_members(Members& members, const DeployOptions& options, const EarlySignals& signals) {
  for (;;) {
    members.clear_changed();
    const std::vector<MemberStatus> there = members.list();
    std::set<std::string> names;
    for (const MemberStatus& member : there) names.insert(member.name);
    if (std::ssize(there) >= options.wait && std::ranges::includes(names, machines_needed(options))) return true;
    std::array<pollfd, 2> waiting{pollfd{members.changed(), POLLIN, 0}, pollfd{signals.descriptor(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), -1);
    if (signals.came()) return false;
  }
}

// What machines come to: as it was kept, if that is possible.
struct Coordination {
  Coordination(const std::optional<KeptDeployment>& kept, const std::string& host,
               const std::function<void(const std::string&, const std::string&)>& report) {
    if (kept) {
      try {
        begin(std::make_unique<DeploymentGroup>("motley", *kept), kept->driver, report);
        report("resumed", "machines of the deployment that was here come back by themselves");
        return;
      } catch (const Error& error) {
        report("resumed", fmt::format("nothing: {}", error.what()));
      }
    }
    begin(std::make_unique<DeploymentGroup>("motley", host + ":0"), host + ":0", report);
  }

  std::unique_ptr<DeploymentGroup> group;
  std::unique_ptr<Members> members;

 private:
  void begin(std::unique_ptr<DeploymentGroup> made, const std::string& listen,
             const std::function<void(const std::string&, const std::string&)>& report) {
    members = std::make_unique<Members>(MembersOptions{
        .listen = listen,
        .access = made->access(),
        .objection = [&admission =
                          made->admission()](const std::string& member) { return admission.member_objection(member); },
        .report = report});
    group = std::move(made);
  }
};

}  // namespace

int deploy(const DeployOptions& options) {
  const std::string model = locate_model(options.model, ModelFiles::all).path;
  const std::string name = machine_name(options.machine);
  prepare_worker_program();
  const std::string host = options.listen.empty() ? own_address() : options.listen;
  const EarlySignals signals;

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

  const double token_lifetime_s = parse_seconds_option(options.token_lifetime, "--token-lifetime");
  const DeploymentFile file(options.port);
  const Coordination coordination(file.read(), host, report);
  const DeploymentGroup& group = *coordination.group;
  Members& members = *coordination.members;
  const auto print_link = [&](double lifetime_s) {
    std::string link = to_text(group.link(members.address(), lifetime_s));
    file.keep(group.record(members.address()));
    fmt::print("motley join '{}'\n", link);
    std::fflush(stdout);
    return link;
  };
  const std::string link = print_link(token_lifetime_s);

  std::vector<std::string> own{"--name", name, "--model", model};
  if (!options.machine.memory.empty()) own.insert(own.end(), {"--memory", options.machine.memory});
  if (options.machine.devices > 1) own.insert(own.end(), {"--devices", std::to_string(options.machine.devices)});
  if (options.machine.threads > 0) own.insert(own.end(), {"--device-threads", std::to_string(options.machine.threads)});
  const OwnAgent own_agent(link, own);

  const ModelManifest manifest =
      make_manifest(model, user_folder("XDG_CACHE_HOME", ".cache") / "digests",
                    [&](double fraction) { report("digests", fmt::format("{:.0f} %", 100 * fraction)); });
  const std::filesystem::path path(model);
  members.offer_weights(manifest, manifest.opens.empty() ? path : path.parent_path());
  const Checkpoint checkpoint(model);

  const auto abort = [&] {
    members.end(agents_grace_s);
    file.remove();
  };
  const std::set<std::string> needed = machines_needed(options);
  report("waiting", needed.empty() ? fmt::format("for {}", counted(static_cast<std::size_t>(options.wait), "machine"))
                                   : fmt::format("for {}", fmt::join(needed, ", ")));
  if (!wait_for_members(members, options, signals)) {
    abort();
    return static_cast<int>(ErrorCode::interrupted);
  }
  if (options.cluster) {
    try {
      check_described(*options.cluster, members.list());
    } catch (const Error&) {
      abort();
      throw;
    }
  } else if (options.wait > 1 || options.plan) {
    report("links", "are measured, one pair after the other");
    for (const MachineLink& measured : members.measure_links(probe_s, signals.descriptor()))
      if (measured.from < measured.to)
        report("links", fmt::format("{} to {}: {}, {}/s", measured.from, measured.to, human_seconds(measured.latency_s),
                                    human_bytes(measured.bytes_per_s)));
  }
  MemberPlans plans(options, members);
  std::optional<ServePlan> plan = options.plan;
  if (!plan) {
    ServeOutcome outcome = plans.plan({}, options.quiet);
    if (!outcome.plan) {
      abort();
      throw Error(ErrorCode::negative, "does not fit: " + outcome.reason, outcome.hint);
    }
    plan = std::move(outcome.plan);
  }
  if (!options.quiet) fmt::print(stderr, "{}\n", plan_report(*plan));
  if (signals.came()) {
    abort();
    return static_cast<int>(ErrorCode::interrupted);
  }

  ServeSettings settings;
  settings.model_folder = model;
  settings.port = options.port;
  settings.api_key = options.api_key;
  settings.drain_s = requests_grace_s;
  settings.restart.waits = true;
  settings.replan = [&](const ServePlan& before, const std::set<std::string>& lost, const Error&) {
    std::optional<ServePlan> next = plans.plan(lost, true, &before).plan;
    if (next) report("plan", fmt::format("without what was lost: {}", moves_of(before, *next)));
    return next;
  };
  const auto chunks_of = [&](const ServePlan& of) {
    return [&](const std::string& device) { return needed_chunks(of, device, checkpoint, manifest); };
  };
  settings.start_workers = [&](const ServePlan& started, std::uint64_t epoch, const CacheHandover& handover,
                               Workers& earlier) {
    return members.start_workers(started, epoch, handover, chunks_of(started), earlier);
  };
  settings.prepare_workers = [&](const ServePlan& prepared, const std::set<std::string>& running) {
    return members.prepare_workers(prepared, running, chunks_of(prepared));
  };
  settings.drain = [&](const std::string& member, bool revoke) {
    if (!revoke) return members.drain(member);
    group.admission().revoke(member);
    report("revoked", fmt::format("{}, and every link so far; the new one is printed", member));
    members.remove(member, "has been revoked");
    print_link(token_lifetime_s);
  };
  settings.new_link = [&](bool revoke, std::optional<double> asked_s) {
    const double lifetime_s = asked_s.value_or(token_lifetime_s);
    if (revoke) group.admission().revoke_tokens();
    print_link(lifetime_s);
    report("link", fmt::format("a new one is printed, for {}{}", human_seconds(lifetime_s),
                               revoke ? "; those before it are revoked" : ""));
    return lifetime_s;
  };
  settings.report = [&](const std::string& what, const std::string& detail, double) { report(what, detail); };
  std::optional<Replanning> replanning;
  settings.on_driver = [&](Driver& driver) { replanning.emplace(members, plans, driver, report); };
  settings.before_end = [&] { replanning.reset(); };
  settings.on_abort = abort;
  settings.deployment = [&] {
    Value there = members_value(members.list());  // not under the lock: members report under theirs
    const std::lock_guard lock(report_mutex);
    return Value::object(
        {{"members", std::move(there)}, {"events", Value(Value::Array(events.begin(), events.end()))}});
  };
  const auto end = [&] {
    replanning.reset();
    abort();
  };
  try {
    const int code = serve_plan(*std::move(plan), std::move(settings));
    end();
    return code;
  } catch (...) {
    end();
    throw;
  }
}

void add_deploy_options(CLI::App& verb, DeployOptions& options) {
  add_machine_options(verb, options.machine);
  verb.add_option("--wait", options.wait, "Machines to wait for, this one among them (default 1)")
      ->check(CLI::Range(1, 4096));
  verb.add_option("--token-lifetime", options.token_lifetime,
                  "How long a printed link admits new machines (default \"24 h\")")
      ->type_name("TIME");
  verb.add_option("--listen", options.listen, "Address of this machine for the others (default: found)")
      ->type_name("HOST");
}

}  // namespace motley::cli
