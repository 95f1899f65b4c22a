#include "motley/cli/coordination.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"

namespace motley::cli {

Coordination::Coordination(const std::optional<KeptDeployment>& kept, const std::string& host, const std::string& name,
                           const Report& report, const std::function<bool()>& waits) {
  for (bool told = false; kept; told = true) {
    try {
      begin(std::make_unique<DeploymentGroup>("motley", *kept), kept->driver, name, report);
      report("resumed", "machines of the deployment that was here come back by themselves");
      return;
    } catch (const Error& error) {
      if (!told) report("resumed", fmt::format("{}: {}", waits ? "not yet" : "nothing", error.what()));
    }
    if (!waits) break;
    if (!waits()) throw Error(ErrorCode::interrupted, "stopped");
  }
  begin(std::make_unique<DeploymentGroup>("motley", host + ":0"), host + ":0", name, report);
}

void Coordination::begin(std::unique_ptr<DeploymentGroup> made, const std::string& listen, const std::string& name,
                         const Report& report) {
  members = std::make_unique<Members>(MembersOptions{
      .listen = listen,
      .access = made->access(),
      .own_name = name,
      .objection = [&admission =
                        made->admission()](const std::string& member) { return admission.member_objection(member); },
      .report = report});
  group = std::move(made);
}

void add_group_options(CLI::App& verb, MachineOptions& machine, std::string& listen, std::string& token_lifetime) {
  add_machine_options(verb, machine);
  verb.add_option("--token-lifetime", token_lifetime, "How long a printed link admits new machines (default \"24 h\")")
      ->type_name("TIME");
  verb.add_option("--listen", listen, "Address of this machine for the others (default: found)")->type_name("HOST");
}

std::vector<std::string> agent_arguments(const MachineOptions& machine, const std::string& name,
                                         const std::string& model) {
  std::vector<std::string> arguments{"--name", name, "--model", model};
  if (!machine.memory.empty()) arguments.insert(arguments.end(), {"--memory", machine.memory});
  if (machine.devices > 1) arguments.insert(arguments.end(), {"--devices", std::to_string(machine.devices)});
  if (machine.threads > 0) arguments.insert(arguments.end(), {"--device-threads", std::to_string(machine.threads)});
  return arguments;
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
