#include "motley/fleet/gathering.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

constexpr const char* group_name = "motley";
constexpr double agents_grace_s = 4;   // for agents to end their workers
constexpr double address_pause_s = 1;  // between attempts to listen where the driver before this one did
constexpr double look_every_s = 0.1;   // for who has come
constexpr double probe_s = 2;          // of traffic between the machines

}  // namespace

// ---- the group, its listener and its relay ----

Gathering::Gathering(std::unique_ptr<DeploymentStore> store, GatheringOptions options)
    : options_(std::move(options)), store_(std::move(store)) {
  const std::string any = (options_.host.empty() ? own_address() : options_.host) + ":0";
  const std::string relay_any = options_.relays ? any : std::string();
  const std::optional<SavedDeployment> kept = store_->read();
  if (!kept || !resume(*kept, kept->relay.empty() ? relay_any : kept->relay))
    begin(std::make_unique<DeploymentGroup>(group_name, any, options_.report, options_.strangers), any, relay_any);
  const std::string own_token = group_->admission().reserve(options_.name);
  keep_changes();
  first_invitation_ = invitation(options_.token_lifetime_s);
  std::vector<std::string> local_agent = options_.local_agent;
  local_agent.insert(local_agent.end(), {"--model", options_.model.string()});
  local_agent_.emplace(std::move(local_agent), to_text(own_invitation(own_token)));
}

Gathering::~Gathering() { end(); }

bool Gathering::resume(const SavedDeployment& kept, const std::string& relay_at) {
  const auto& report = options_.report;
  for (bool told = false;; told = true) {
    try {
      begin(std::make_unique<DeploymentGroup>(group_name, kept, report, options_.strangers), kept.driver, relay_at);
      report("resumed", "machines of the deployment that was here come back by themselves");
      return true;
    } catch (const Error& error) {
      if (!told) report("resumed", fmt::format("{}: {}", store_->is_shared() ? "not yet" : "nothing", error.what()));
    }
    if (!store_->is_shared()) return false;
    pause(address_pause_s);
  }
}

void Gathering::begin(std::unique_ptr<DeploymentGroup> made, const std::string& address, const std::string& relay_at) {
  const auto objection = [&admission = made->admission()](const std::string& member) {
    return admission.member_objection(member);
  };
  auto listening = std::make_unique<AgentMachines>(AgentMachinesOptions{.listen = listen_address(address),
                                                                        .access = made->access(),
                                                                        .strangers = options_.strangers,
                                                                        .own_name = options_.name,
                                                                        .objection = objection,
                                                                        .report = options_.report});
  driver_ = found_at(address, listening->address());
  if (!relay_at.empty()) {
    relay_.emplace(RelayOptions{.listen = listen_address(relay_at),
                                .key = made->key(),
                                .identity = made->identity(),
                                .objection = objection,
                                .strangers = options_.strangers,
                                .log = [report = options_.report](const std::string& line) { report("relay", line); }});
    relay_address_ = found_at(relay_at, relay_->address());
  }
  machines_ = std::move(listening);
  group_ = std::move(made);
}

void Gathering::keep_changes() {
  group_->admission().keep_with([this, &group = *group_](const AdmissionRecord& record) {
    SavedDeployment next = group.record(driver_, record);
    next.relay = relay_address_;
    try {
      store_->keep(next);
    } catch (const Error& error) {
      options_.report("store",
                      fmt::format("cannot hold who may come, so that nothing of it changes: {}", error.what()));
      throw;
    }
  });
}

void Gathering::forget() {
  group_->admission().keep_with({});
  store_->remove();
}

// ---- links ----

Invitation Gathering::invitation(double lifetime_s) const {
  Invitation made = group_->invitation(driver_, lifetime_s);
  made.relay = relay_address_;
  return made;
}

// This machine's own agent finds its driver here, whatever the names mean.
Invitation Gathering::own_invitation(const std::string& token) const {
  Invitation made = first_invitation_;
  made.token = token;
  for (std::string* address : {&made.coordinator, &made.driver, &made.relay})
    if (!address->empty() && listen_address(*address) != *address)
      *address = fmt::format("{}:{}", own_address(), parse_host_port(*address).port);
  return made;
}

double Gathering::show_new_invitation(bool revoke, std::optional<double> lifetime_s) {
  const double for_s = lifetime_s.value_or(options_.token_lifetime_s);
  if (revoke) group_->admission().revoke_tokens();
  options_.show_invitation(invitation(for_s));
  options_.report("link", fmt::format("a new one is printed, for {}{}", human_seconds(for_s),
                                      revoke ? "; those before it are revoked" : ""));
  return for_s;
}

std::vector<std::string> Gathering::revoke(const std::string& member) {
  std::set<std::string> there = machines_->leaving();
  for (const MachineStatus& one : machines_->list()) there.insert(one.name);
  std::vector<std::string> same_link = group_->admission().revoke(member, there);
  std::erase(same_link, options_.name);
  machines_->remove(member, "has been revoked");
  options_.report("revoked", fmt::format("{}, and every link so far; the new one is printed", member));
  for (const std::string& other : same_link)
    options_.report("revoked", fmt::format("not {}, which came by the same link: motley deployment drain {} --revoke",
                                           other, other));
  options_.show_invitation(invitation(options_.token_lifetime_s));
  return same_link;
}

// ---- machines ----

// Or until the members change. Throws where it is to stop.
void Gathering::pause(double seconds) const {
  std::array<pollfd, 2> waiting{pollfd{options_.stop, POLLIN, 0},
                                pollfd{machines_ ? machines_->changed() : -1, POLLIN, 0}};
  ::poll(waiting.data(), waiting.size(), static_cast<int>(seconds * 1e3));
  if (waiting[0].revents == 0) return;
  check_held();
  throw Error(ErrorCode::interrupted, "stopped");
}

void Gathering::until_there(int count, const std::set<std::string>& names, const std::function<bool()>& given_up) {
  for (;;) {
    machines_->clear_changed();
    std::set<std::string> there;
    for (const MachineStatus& member : machines_->list()) there.insert(member.name);
    if ((std::ssize(there) >= count && std::ranges::includes(there, names)) || given_up()) return;
    pause(look_every_s);
  }
}

void Gathering::open() {
  until_there(1, {options_.name}, [this] { return local_agent_->was_refused(); });
  options_.show_invitation(first_invitation_);
}

void Gathering::offer_weights() {
  const auto progress = [this](double fraction) {
    pause(0);
    options_.report("digests", fmt::format("{:.0f} %", 100 * fraction));
  };
  machines_->offer_weights(make_manifest(options_.model, cache_folder() / "digests", progress, options_.contents),
                           options_.model);
}

void Gathering::wait_for(int count, const std::set<std::string>& names) {
  options_.report("waiting", names.empty() ? fmt::format("for {}", counted(static_cast<std::size_t>(count), "machine"))
                                           : fmt::format("for {}", fmt::join(names, ", ")));
  until_there(count, names, [] { return false; });
}

void Gathering::measure_links() {
  options_.report("links", "are measured, one pair after the other");
  for (const MachineLink& measured : machines_->measure_links(probe_s, options_.stop))
    if (measured.from < measured.to) options_.report("links", describe(measured));
}

void Gathering::check_described(const Cluster& cluster) const {
  const std::vector<MachineStatus> there = machines_->list();
  for (const Machine& machine : cluster.machines) {
    const auto member = std::ranges::find(there, machine.name, &MachineStatus::name);
    if (member == there.end()) continue;
    if (machine.devices.size() != member->devices.size())
      throw input_error(fmt::format("the cluster file gives {} {}, and its agent offers {}", machine.name,
                                    counted(machine.devices.size(), "device"), member->devices.size()),
                        "describe what the machine offers: its GPUs, or its processor as one device");
    for (const int device : machine.devices) {
      const std::string& name = cluster.devices[static_cast<std::size_t>(device)].name;
      const auto offer = std::ranges::find_if(
          member->devices, [&](const OfferedDevice& one) { return name == device_name(machine.name, one); });
      if (offer == member->devices.end())
        throw input_error(fmt::format("the cluster file gives {}, which its agent does not offer", name),
                          "describe what the machine offers; `empty` leaves a slot out");
      if (const auto described = cluster.type_of(device).memory_bytes; described > offer->memory_bytes)
        throw input_error(fmt::format("the cluster file gives {} {}, and its agent offers {}", name,
                                      human_bytes(static_cast<double>(described)),
                                      human_bytes(static_cast<double>(offer->memory_bytes))),
                          "describe less memory, or start the agent with a larger --memory");
    }
  }
}

// ---- the end ----

void Gathering::end() {
  std::call_once(ended_, [this] {
    if (!is_held()) {
      local_agent_->kill();
      return machines_->leave();
    }
    machines_->end(agents_grace_s);
    forget();
  });
}

void Gathering::leave() {
  std::call_once(ended_, [this] {
    local_agent_->kill();
    machines_->leave();
  });
}

}  // namespace motley
