#include "motley/cli/coordination.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley::cli {

Coordination::Coordination(DeploymentStore& store, const CoordinationOptions& options)
    : store_(store), own_name_(options.name) {
  const std::string any = (options.host.empty() ? own_address() : options.host) + ":0";
  const std::string relay_any = options.relays ? any : std::string();
  const std::optional<KeptDeployment> kept = store.read();
  if (!kept || !resume(*kept, kept->relay.empty() ? relay_any : kept->relay, options))
    begin(std::make_unique<DeploymentGroup>("motley", any, options.report, strangers_with(options.most_handshakes)),
          any, relay_any, options);
  own_token_ = group->admission().reserve(own_name_);
  // Copies: the coordinator's thread asks until the group has gone, which goes last.
  group->admission().keep_with([&store, &made = *group, driver = driver, relay = relay_address,
                                report = options.report](const AdmissionRecord& record) {
    KeptDeployment next = made.record(driver, record);
    next.relay = relay;
    try {
      store.keep(next);
    } catch (const Error& error) {
      report("store", fmt::format("cannot hold who may come, so that nothing of it changes: {}", error.what()));
      throw;
    }
  });
}

bool Coordination::resume(const KeptDeployment& kept, const std::string& relay_at, const CoordinationOptions& options) {
  const auto& report = options.report;
  const auto& waits = options.waits;
  for (bool told = false;; told = true) {
    try {
      begin(std::make_unique<DeploymentGroup>("motley", kept, report, strangers_with(options.most_handshakes)),
            kept.driver, relay_at, options);
      report("resumed", "machines of the deployment that was here come back by themselves");
      return true;
    } catch (const Error& error) {
      if (!told) report("resumed", fmt::format("{}: {}", waits ? "not yet" : "nothing", error.what()));
    }
    if (!waits) return false;
    if (!waits()) throw Error(ErrorCode::interrupted, "stopped");
  }
}

void Coordination::begin(std::unique_ptr<DeploymentGroup> made, const std::string& address, const std::string& relay_at,
                         const CoordinationOptions& options) {
  const auto objection = [&admission = made->admission()](const std::string& member) {
    return admission.member_objection(member);
  };
  auto listening = std::make_unique<Members>(MembersOptions{.listen = listen_address(address),
                                                            .access = made->access(),
                                                            .strangers = strangers_with(options.most_handshakes),
                                                            .own_name = options.name,
                                                            .objection = objection,
                                                            .report = options.report});
  driver = found_at(address, listening->address());
  if (!relay_at.empty()) {
    relay.emplace(RelayOptions{.listen = listen_address(relay_at),
                               .key = made->key(),
                               .identity = made->identity(),
                               .objection = objection,
                               .strangers = strangers_with(options.most_handshakes),
                               .log = [report = options.report](const std::string& line) { report("relay", line); }});
    relay_address = found_at(relay_at, relay->address());
  }
  members = std::move(listening);
  group = std::move(made);
}

JoinLink Coordination::link(double lifetime_s) const {
  JoinLink made = group->link(driver, lifetime_s);
  made.relay = relay_address;
  return made;
}

std::vector<std::string> Coordination::revoke(const std::string& member) const {
  std::set<std::string> there = members->leaving();
  for (const MemberStatus& one : members->list()) there.insert(one.name);
  std::vector<std::string> same_link = group->admission().revoke(member, there);
  std::erase(same_link, own_name_);
  members->remove(member, "has been revoked");
  return same_link;
}

void Coordination::forget() {
  group->admission().keep_with({});
  store_.remove();
}

JoinLink Coordination::own_link(JoinLink link) const {
  link.token = own_token_;
  for (std::string* address : {&link.coordinator, &link.driver, &link.relay})
    if (!address->empty() && listen_address(*address) != *address)
      *address = fmt::format("{}:{}", own_address(), parse_host_port(*address).port);
  return link;
}

namespace {

std::string check_store(const std::string& url) {
  return url.starts_with("etcd://") ? "" : fmt::format("\"{}\" is not of the form etcd://HOST:PORT/PREFIX", url);
}

// Whether it leads here is for the other machines to say: a name may be this machine's only later.
std::string check_host(const std::string& host) {
  const bool fits = !host.empty() && std::ranges::all_of(host, [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view(".-_:[]").find(static_cast<char>(letter)) != std::string_view::npos;
  });
  return fits ? "" : fmt::format("\"{}\" is neither an address nor a machine's name", host);
}

}  // namespace

CLI::Option* add_store_option(CLI::App& verb, std::string& store, const std::string& help) {
  return verb.add_option("--store", store, help)->type_name("URL")->check(check_store);
}

void add_group_options(CLI::App& verb, MachineOptions& machine, std::string& listen, std::string& token_lifetime) {
  add_machine_options(verb, machine);
  verb.add_option("--token-lifetime", token_lifetime, "How long a printed link admits new machines (default \"24 h\")")
      ->type_name("TIME");
  verb.add_option("--listen", listen, "Address or name of this machine for the others (default: found)")
      ->type_name("HOST")
      ->check(check_host);
}

double token_lifetime_s(const std::string& text) {
  const double seconds = parse_seconds_option(text, "--token-lifetime");
  if (seconds > 0) return seconds;
  throw input_error("--token-lifetime must be above 0 s", "give a time, as in --token-lifetime \"24 h\"");
}

void add_handshakes_option(CLI::App& verb, std::size_t& most) {
  verb.add_option("--max-handshakes", most, "Most connections of one address without a credential (default 128)")
      ->check(CLI::Range(1, 4096));
}

void add_relay_option(CLI::App& verb, bool& relays) {
  verb.add_flag("--relay", relays, "Pass data on between machines that join with --relayed");
}

std::vector<std::string> agent_arguments(const MachineOptions& machine, const std::string& name,
                                         const std::string& model) {
  std::vector<std::string> arguments{"--name", name, "--model", model};
  if (!machine.memory.empty()) arguments.insert(arguments.end(), {"--memory", machine.memory});
  if (machine.devices > 1) arguments.insert(arguments.end(), {"--devices", std::to_string(machine.devices)});
  if (machine.threads > 0) arguments.insert(arguments.end(), {"--device-threads", std::to_string(machine.threads)});
  return arguments;
}

void print_link(const JoinLink& link) {
  fmt::print("motley join '{}'\n", to_text(link));
  std::fflush(stdout);
}

bool wait_for_members(Members& members, int count, const std::set<std::string>& names,
                      const std::function<bool()>& stopped) {
  for (;;) {
    members.clear_changed();
    std::set<std::string> there;
    for (const MemberStatus& member : members.list()) there.insert(member.name);
    if (std::ssize(there) >= count && std::ranges::includes(there, names)) return true;
    pollfd waiting{members.changed(), POLLIN, 0};
    constexpr int look_every_ms = 100;
    ::poll(&waiting, 1, look_every_ms);
    if (stopped()) return false;
  }
}

void print_link_after(const OwnAgent& own_agent, const std::string& name, Members& members, const JoinLink& link,
                      const std::function<bool()>& stopped) {
  wait_for_members(members, 1, {name}, [&] { return own_agent.was_refused() || stopped(); });
  print_link(link);
}

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

}  // namespace motley::cli
