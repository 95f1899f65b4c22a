// What the verbs that wait for machines share: `up`, `serve --agents` and `train --agents`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/agent/deployment_group.hpp"
#include "motley/agent/members.hpp"
#include "motley/cli/agents.hpp"
#include "motley/cluster/cluster.hpp"

namespace motley::cli {

// What machines come to: as it was kept, if that is possible. `name` is this machine's, `host` its address.
struct Coordination {
  using Report = std::function<void(const std::string& what, const std::string& detail)>;
  // Where it cannot be as it was kept, it begins as a new one; with `waits` it throws an interrupted error once
  // `waits` says that it is not to be tried again.
  Coordination(const std::optional<KeptDeployment>& kept, const std::string& host, const std::string& name,
               const Report& report, const std::function<bool()>& waits = {});

  std::unique_ptr<DeploymentGroup> group;
  std::unique_ptr<Members> members;

 private:
  void begin(std::unique_ptr<DeploymentGroup> made, const std::string& listen, const std::string& name,
             const Report& report);
};

// --listen, --token-lifetime and the options of this machine.
void add_group_options(CLI::App& verb, MachineOptions& machine, std::string& listen, std::string& token_lifetime);

// Of `motley join` on this machine, whose own copy of the model is `model`.
std::vector<std::string> agent_arguments(const MachineOptions& machine, const std::string& name,
                                         const std::string& model);

// Until so many are there, these among them. `stopped` is asked often; false: it said so.
bool wait_for_members(Members& members, int count, const std::set<std::string>& names,
                      const std::function<bool()>& stopped);

// A described machine must be what its agent offers; throws an input error.
void check_described(const Cluster& cluster, const std::vector<MemberStatus>& members);

}  // namespace motley::cli
